"""What a rank that Open MPI started sees and measures: emulated_mpi_rank.py BYTES.

Rank 0 prints a line of JSON, a report a rank.
Rank 1 then ends with exit code 7.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
from mpi4py import MPI


def main() -> int:
    world = MPI.COMM_WORLD
    summed = np.empty(4, dtype=np.int64)
    world.Allreduce(np.arange(4) + world.rank, summed)
    shown = json.loads(
        subprocess.run(
            ["ip", "-j", "-4", "addr", "show", "id0"], capture_output=True, check=True
        ).stdout
    )
    report = {
        "rank": world.rank,
        "sum": summed.tolist(),
        "host": socket.gethostname(),
        "addresses": [address["local"] for address in shown[0]["addr_info"]],
        "variables": dict(os.environ),
        "algorithm": read_setting("coll_tuned_allreduce_algorithm"),
        "seconds": time_there_and_back(world, world.size - 1, int(sys.argv[1])),
    }
    gathered = world.gather(report)
    if gathered is not None:
        print(json.dumps(gathered), flush=True)
    world.Barrier()
    MPI.Finalize()
    return 7 if report["rank"] == 1 else 0


def read_setting(name: str) -> int:
    """Return the value that a whole-numbered parameter of Open MPI has in this process, by MPI's
    interface for tools.
    """
    library = ctypes.CDLL("libmpi.so.40")
    index, handle, count, value = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    provided = ctypes.c_int()
    assert library.MPI_T_init_thread(0, ctypes.byref(provided)) == 0
    assert library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)) == 0
    assert (
        library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)) == 0
    )
    assert library.MPI_T_cvar_read(handle, ctypes.byref(value)) == 0
    return value.value


def time_there_and_back(world: MPI.Intracomm, other: int, size_bytes: int) -> float:
    """Return the seconds that a message takes from rank 0 to another rank and back; 0 on other
    ranks.
    """
    message = np.zeros(size_bytes, dtype=np.uint8)
    world.Barrier()
    began = time.perf_counter()
    if world.rank == 0:
        world.Send(message, other)
        world.Recv(message, other)
        return time.perf_counter() - began
    if world.rank == other:
        world.Recv(message, 0)
        world.Send(message, 0)
    return 0.0


if __name__ == "__main__":
    sys.exit(main())
