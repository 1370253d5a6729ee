"""Add up a tensor over all ranks through a plan, beside torch.distributed's own allreduce.

torchrun --standalone --nproc-per-node 2 examples/run_a_collective.py
python examples/run_a_collective.py                 the same: it calls torchrun
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist

import topoplan

ELEMENTS = 1 << 16


def main() -> None:
    """Join the other ranks, run the plan, and compare."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    # All ranks make the same plan; they compare its hash before any data moves.
    # Plan.load("plan.json") reads one.
    communicator = topoplan.Communicator(topoplan.synthesize("allreduce", f"full:{world}"))

    tensor = torch.arange(ELEMENTS, dtype=torch.float32) * (rank + 1)
    expected = tensor.clone()
    communicator.allreduce(tensor)
    dist.all_reduce(expected)

    same = torch.equal(tensor, expected)
    choice = communicator.choice(tensor.nbytes)
    if rank == 0:
        print(
            f"{communicator.plan}: sum over {world} ranks, {'as' if same else 'NOT as'} "
            "dist.all_reduce has it"
        )
        if choice is not None:
            print(choice.describe())
    communicator.close()
    dist.destroy_process_group()
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun has started this process as one of several ranks
        main()
    else:
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
        sys.exit(subprocess.call([sys.executable, *ranks]))
