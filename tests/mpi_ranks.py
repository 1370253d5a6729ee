"""What every rank that mpirun starts for a test does: join the others, and run functions of
`ranks/`, one after the other.

`python mpi_ranks.py CALLS`: a JSON file with the module, the function and the arguments of each.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from rank_process import init

from topoplan.runtime.extras.mpi.launched import join_mpi


def main(calls: Path) -> None:
    """Run the functions, and write what they return to a file beside `calls`, under the rank's
    number.
    """
    torch.set_num_threads(1)
    assert join_mpi(), "mpirun did not start this process"
    results = []
    for number, (module, function, arguments) in enumerate(
        json.loads(calls.read_text(encoding="utf-8"))
    ):
        if not dist.is_initialized():
            init(f"-mpi{number}")
        results.append(getattr(importlib.import_module(module), function)(*arguments))
    if dist.is_initialized():
        dist.destroy_process_group()
    calls.with_name(f"{os.environ['RANK']}.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # not through MPI_Finalize, which waits for ranks that are waiting for this one
