"""Training under the backend "topo": what people use on top of torch.distributed runs unmodified,
and ranks agree.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from installed import install_metadata
from launch import run_module, run_on_one_gpu, run_ranks
from needs import has_extra
from ranks import backend_training, gpu, plain_script


@pytest.mark.long
def test_what_is_built_on_torch_distributed_runs_through_plans(
    folder_of_plans: Callable[..., Path],
) -> None:
    """DDP, FSDP2 and HSDP train as one process does; functional collectives, compile, DTensor and
    subgroups are right.
    """
    names = ("allreduce", "allgather", "reduce-scatter")
    folder = folder_of_plans(*[(f"ring:{ranks}", name) for ranks in (4, 2) for name in names])
    run_ranks(backend_training.everything, 4, str(folder))


@pytest.mark.long
def test_an_unmodified_script_needs_the_backends_name_alone(tmp_path: Path) -> None:
    """With torchrun; torch finds the backend through the entry points, as of an installed
    package.
    """
    script = Path(str(plain_script.__file__)).read_text(encoding="utf-8")
    assert script.count("gloo") == 1
    (tmp_path / "script.py").write_text(script.replace("gloo", "topo"), encoding="utf-8")
    environment = {
        **install_metadata(tmp_path / "site"),
        "OMP_NUM_THREADS": "1",
        "TOPOPLAN_CACHE": str(tmp_path / "cache"),
    }
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ended = run_module(*torchrun, "script.py", env=environment, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    if has_extra("cache"):
        collectives = [file.name.split("-")[0] for file in (tmp_path / "cache").iterdir()]
        assert collectives.count("allreduce") == 1

    model, (x, y) = plain_script.network(), plain_script.dataset().tensors
    plain_script.train(model, [(x[i : i + 16], y[i : i + 16]) for i in range(0, 256, 16)], 3)
    for name, value in torch.load(tmp_path / "snapshot.pt").items():
        assert torch.allclose(value, model.state_dict()[name], rtol=1e-4, atol=1e-6), name


@pytest.mark.gpu
@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("executor", ["point-to-point", "one-sided"])
def test_the_backend_on_a_gpu_agrees_with_nccl(tmp_path: Path, executor: str) -> None:
    """DDP's gradients through the backend are those of NCCL itself, and so are collectives."""
    run_on_one_gpu(gpu.backend, str(tmp_path / "cache"), executor)
    run_on_one_gpu(gpu.collectives, str(tmp_path / "cache"), executor)
