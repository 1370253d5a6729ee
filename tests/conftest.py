"""Fixtures that several test files share."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from topoplan.synth.synthesize import collective_on, synthesize
from topoplan.topo.presets import preset

RANK_HEAD = """
import os, sys, torch, torch.distributed as dist, topoplan
from datetime import timedelta
from topoplan.runtime.communicator import Communicator
torch.set_num_threads(1)
RANK, WORLD, FILE, ARGS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
dist.init_process_group("gloo", init_method="file://" + FILE, rank=RANK, world_size=WORLD, timeout=timedelta(seconds=60))
"""

MACHINES = Path(__file__).resolve().parents[2] / "shared" / "machines"


@pytest.fixture
def recorded() -> Callable[[str], Path]:
    """The path of a recorded machine (`nccl_xml/oci/H100-topology.xml`); where it is absent the test skips."""

    def find(name: str) -> Path:
        path = MACHINES / name
        if not path.is_file():
            pytest.skip(f"recorded machine {name} is not here ({MACHINES})")
        return path

    return find


RANK_TAIL = """
body()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo may abort an interpreter that ends while something still holds on to a process group
"""


def _run_ranks(body: str, world: int, *args: str, timeout: float = 150) -> list[str]:
    """Standard output of each rank; AssertionError with what a rank printed if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "rank.py"
        inner = textwrap.indent(textwrap.dedent(body), "    ")
        script.write_text(f"{RANK_HEAD}\ndef body():\n{inner}\n{RANK_TAIL}")
        command = [sys.executable, str(script)]
        rest = [str(world), str(Path(folder) / "rendezvous"), *args]
        ranks = [
            subprocess.Popen([*command, str(r), *rest], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for r in range(world)
        ]
        try:
            done = [rank.communicate(timeout=timeout) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    for number, (rank, (out, err)) in enumerate(zip(ranks, done, strict=True)):
        assert rank.returncode == 0, f"rank {number} ended with {rank.returncode}:\n{out}\n{err}"
    return [out for out, _ in done]


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., list[str]]:
    """Real processes over real sockets: `run_ranks(body, world, *args)` runs Python text once a rank."""
    return _run_ranks


@pytest.fixture(scope="session")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The path of a plan: `plans("ring:4")`, `plans("switch:4", "allreduce", "direct")`; synthesized once."""
    folder = tmp_path_factory.mktemp("plans")

    def make(topology: str, collective: str = "allreduce", strategy: str = "auto") -> str:
        path = folder / f"{topology}-{collective}-{strategy}.json".replace(":", "_")
        if not path.exists():
            target = preset(topology)
            synthesize(collective_on(collective, target), target, strategy, 20).plan.save(path)
        return str(path)

    return make


GPU_HEAD = """
import os, sys, torch, torch.distributed as dist, topoplan, topoplan.runtime.register
FILE, ARGS, RANK = sys.argv[1], sys.argv[2:], int(os.environ["RANK"])
torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method="file://" + FILE, rank=RANK, world_size=2)
def gradients(hook=None, group=None):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)).cuda()
    model = torch.nn.parallel.DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.02)
    if hook:
        model.register_comm_hook(None, hook)
    for step in range(3):
        model.zero_grad()
        model(torch.randn(16, 64, generator=torch.Generator().manual_seed(RANK)).cuda()).square().mean().backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])
"""


@pytest.fixture
def on_one_gpu(tmp_path: Path) -> Callable[..., None]:
    """Runs Python text as two NCCL ranks, which share a GPU as NCCL takes them for two hosts; skips where there is none."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")

    def run(body: str, *args: str) -> None:
        script = tmp_path / "rank.py"
        script.write_text(f"{GPU_HEAD}\n{textwrap.dedent(body)}\nos._exit(0)\n")
        command = [sys.executable, str(script), str(tmp_path / "rendezvous"), *args]
        nccl = {**os.environ, "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        ranks = [subprocess.Popen(command, env={**nccl, "RANK": str(r), "NCCL_HOSTID": f"r{r}"}) for r in range(2)]
        assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]

    return run
