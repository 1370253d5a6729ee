"""Time MPI's own allreduce by mpi4py (extra `mpi`): a line a size, with the median of the slowest
rank's times.

mpirun -n 4 python examples/mpi_allreduce.py 64K 8M
topo-emulate examples/two-hosts.json --mpi -- python examples/mpi_allreduce.py 8M    (as root)
"""

import argparse
import json
import statistics

import numpy as np
from mpi4py import MPI

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def main() -> None:
    """Time each size and print it on rank 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sizes", nargs="*", default=["8M"], help="bytes, in binary multiples: 64K, 8M (default: 8M)"
    )
    parser.add_argument("-n", type=int, default=5, help="calls that are timed (default: 5)")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    args = parser.parse_args()
    for size in args.sizes:
        size_bytes = int(size[:-1]) * UNITS[size[-1]] if size[-1] in UNITS else int(size)
        seconds = statistics.median(time_allreduce(size_bytes, args.n))
        ranks = MPI.COMM_WORLD.size
        algbw = size_bytes / seconds / 1e9
        row = {
            "size_bytes": size_bytes,
            "us": seconds * 1e6,
            "algbw_GBps": algbw,
            "busbw_GBps": algbw * 2 * (ranks - 1) / ranks,
        }
        if MPI.COMM_WORLD.rank == 0:
            text = (
                "{size_bytes:>12} B {us:>12.1f} us  algbw {algbw_GBps:.4g} GB/s  busbw "
                "{busbw_GBps:.4g} GB/s"
            )
            print(json.dumps(row) if args.json else text.format(**row), flush=True)


def time_allreduce(size_bytes: int, calls: int) -> list[float]:
    """Return the slowest rank's seconds of each call, after one that is not counted; check what was
    added up.
    """
    world = MPI.COMM_WORLD
    times = []
    buffer = np.empty(size_bytes // 4, dtype=np.float32)
    for _ in range(calls + 1):
        buffer.fill(world.rank)
        world.Barrier()
        began = MPI.Wtime()
        world.Allreduce(MPI.IN_PLACE, buffer)
        times.append(world.allreduce(MPI.Wtime() - began, MPI.MAX))
        assert (buffer == world.size * (world.size - 1) / 2).all(), "a wrong sum"
    return times[1:]


if __name__ == "__main__":
    main()
