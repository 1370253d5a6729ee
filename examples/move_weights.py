"""Move weights from ranks that train to ranks that serve, whose meshes and placements differ.

torchrun --standalone --nproc-per-node 4 examples/move_weights.py
python examples/move_weights.py                 the same: it calls torchrun
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard

import topoplan

SHAPE = (64, 48)


def zeros(mesh: DeviceMesh, placement: Placement) -> DTensor:
    """Return a tensor of zeros on a mesh; ranks outside of it hold an empty part."""
    local = torch.zeros(SHAPE)
    place = mesh.get_coordinate()
    if place is None:
        local = torch.zeros(0)
    elif isinstance(placement, Shard):
        local = local.chunk(mesh.size(), placement.dim)[place[0]].contiguous()
    stride = (SHAPE[1], 1)
    return DTensor.from_local(local, mesh, [placement], run_check=False, shape=SHAPE, stride=stride)


def main() -> None:
    """Move two steps of weights, and check what arrives."""
    dist.init_process_group("gloo")
    rank, half = dist.get_rank(), dist.get_world_size() // 2
    # Every rank makes both meshes, whichever it is in.
    training = DeviceMesh("cpu", torch.arange(half))
    serving = DeviceMesh("cpu", torch.arange(half) + half)
    trained = {f"layer{i}": zeros(training, Shard(0)) for i in range(3)}
    served = {name: zeros(serving, Shard(1)) for name in trained}
    for step in range(1, 3):
        for tensor in trained.values():
            tensor.to_local().fill_(step)  # a training step
        # Which tensors move where is planned in the first step.
        topoplan.reshard_state_dict(trained, served)
        arrived = all(bool((tensor.to_local() == step).all()) for tensor in served.values())
        if not arrived:
            sys.exit(f"rank {rank} has not received step {step}")
    if rank == half:
        print(f"two steps of {len(served)} tensors moved from {half} ranks to {half}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun has started this process as one of several ranks
        main()
    else:
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", __file__]
        sys.exit(subprocess.call([sys.executable, *ranks]))
