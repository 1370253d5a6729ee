"""What the backend costs a rank beside gloo: threads, sockets, memory, and seconds to import and to
start.

    python -m benchmarks footprint  8 ranks in a mesh of 4 x 2, all collectives, broadcasts from
                                    every root
    python -m benchmarks footprint --repeats 5

Every way is a launch of its own, in turns. Plans come from files and are used for every call; what
is counted is the most of any rank, after the last collective. The rest are medians over ranks and
launches: processor seconds of the imports, of init_process_group up to the first barrier, and of
both (ready_s); and memory (RSS) then (ready_MiB) and at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Table, make_parser

RANKS, ROWS, ROW_RANKS = 8, 4, 2
# The most of gloo's figure that topo may have.
BARS = {"threads": 2.0, "sockets": 2.0, "ready_s": 1.15, "ready_MiB": 1.15}
FORCED = {"TOPOPLAN_CHOOSE": "plan", "TOPOPLAN_LEAST_BYTES": "0"}


def run_rank(backend: str) -> None:
    """Be one rank: print its figures as a line of JSON."""
    begun = time.process_time()
    import torch
    import torch.distributed as dist

    if backend == "topo":
        import topoplan.runtime.register  # noqa: F401  (what torch does where the package is installed)
    imported = time.process_time()
    dist.init_process_group(backend)
    dist.barrier()
    started = time.process_time()
    figures = {
        "import_s": imported - begun,
        "init_s": started - imported,
        "ready_s": started - begun,
    }
    figures["ready_MiB"] = count_memory_MiB()

    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (ROWS, ROW_RANKS), mesh_dim_names=("dp", "tp"))
    for group in (dist.group.WORLD, mesh["dp"].get_group(), mesh["tp"].get_group()):
        assert group is not None
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        tensor, whole = torch.full((1024,), float(rank)), torch.zeros(1024 * size)
        dist.all_reduce(tensor, group=group)
        assert float(tensor[0]) == size * (size - 1) / 2
        dist.all_gather_into_tensor(whole, tensor, group=group)
        dist.reduce_scatter_tensor(tensor, whole, group=group)
        for root in dist.get_process_group_ranks(group):
            dist.broadcast(tensor, root, group=group)
    dist.barrier()
    figures["threads"] = len(list(Path("/proc/self/task").iterdir()))
    figures["sockets"] = count_sockets()
    figures["MiB"] = count_memory_MiB()
    print(json.dumps(figures), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def count_sockets() -> int:
    """Return how many sockets this process has open."""
    files = [file for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return sum(str(file.readlink()).startswith("socket:") for file in files)


def count_memory_MiB() -> float:
    """Return the resident memory of this process."""
    return (
        int(Path("/proc/self/statm").read_text().split()[1])
        * os.sysconf("SC_PAGE_SIZE")
        / (1 << 20)
    )


def make_plans(folder: Path) -> None:
    """Write the plans for all groups and collectives."""
    for size in (RANKS, ROWS, ROW_RANKS):
        for collective in ("allreduce", "allgather", "reduce-scatter", "broadcast"):
            for root in range(size) if collective == "broadcast" else [None]:
                command = [
                    sys.executable,
                    "-m",
                    "topoplan.cli.synth",
                    "--collective",
                    collective,
                    "--topology",
                    f"switch:{size}",
                ]
                command += ["--strategy", "ring" if root is None else "packing"]
                command += [] if root is None else ["--root", str(root)]
                command += ["-o", str(folder / f"{collective}-{size}-{root}.json")]
                subprocess.run(
                    command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )


def launch(backend: str, plans: Path) -> list[dict[str, float]]:
    """Return the figures of all ranks of one launch."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        **os.environ,
        **FORCED,
        "TOPOPLAN_PLANS": str(plans),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", backend],
            env={**common, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(RANKS)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"{backend}: a rank failed")
    return [json.loads(output) for output in outputs]


COLUMNS = (
    ("figure", "", "12"),
    ("gloo", "gloo", ">10.3g"),
    ("topo", "topo", ">10.3g"),
    ("ratio", "ratio", ">7.2f"),
    ("bar", "bar", ">6"),
    ("met", "met", ">3"),
)


def main() -> None:
    """Print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="launches of each way")
    parser.add_argument("--rank", metavar="BACKEND", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        run_rank(args.rank)
        return
    found: dict[str, list[dict[str, float]]] = {"gloo": [], "topo": []}
    with tempfile.TemporaryDirectory() as folder:
        make_plans(Path(folder))
        for _ in range(args.repeats):
            for backend, figures in found.items():
                figures += launch(backend, Path(folder))
    table = Table(COLUMNS, as_json=args.json)
    for name in ("threads", "sockets", "import_s", "init_s", "ready_s", "ready_MiB", "MiB"):
        take = max if name in ("threads", "sockets") else statistics.median
        gloo, topo = (take(x[name] for x in found[backend]) for backend in found)
        bar = BARS.get(name)
        met = None if bar is None else topo <= bar * gloo
        figures = {"gloo": gloo, "topo": topo, "ratio": topo / gloo, "bar": bar, "met": met}
        table.add({"figure": name, **figures})
    table.end()


if __name__ == "__main__":
    main()
