"""Train a small network on scikit-learn's handwritten digits with DDP, through a plan or with the
stock allreduce.

    torchrun --nproc-per-node 8 examples/train_ddp.py                        stock
    torchrun --nproc-per-node 8 examples/train_ddp.py --plan plan.json       through the plan
    torchrun --nproc-per-node 8 examples/train_ddp.py --plan plan.json --compress int8   fewer bytes
    torchrun --nproc-per-node 8 examples/train_ddp.py --backend topo         plans without a hook

On several hosts, the same on each:
    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        examples/train_ddp.py --plan P

The difference to a stock script is the one line that registers the hook,

    +    model.register_comm_hook(None, topoplan.ddp_hook("plan.json"))

or, with the backend, one word: init_process_group("topo").
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import topoplan

# not needed where topoplan is installed: torch finds the backend itself
import topoplan.runtime.register


def main() -> None:
    """Join the other ranks, train, and print loss and test accuracy from rank 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", help="a plan for allreduce, written by topo-synth -o")
    parser.add_argument(
        "--compress", help="with a plan, gradients travel as fp16, bf16, fp8, fp8-e5m2 or int8"
    )
    parser.add_argument("--backend", help="default: nccl with a GPU a rank, else gloo")
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()

    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    backend = args.backend or ("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    result = train(args.plan, args.compress, args.epochs, device)
    if dist.get_rank() == 0:
        how = f"plan {args.plan}" if args.plan else f"backend {backend}"
        print(f"{how}{f', {args.compress} on the wire' if args.compress else ''}: {result}")
    dist.barrier()
    # when nothing holds on to a group any more: gloo may abort at exit otherwise
    dist.destroy_process_group()


def train(plan: str | None, compress: str | None, epochs: int, device: torch.device) -> str:
    """Train on this rank's share of every batch; return time, loss and accuracy in words."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32, device=device) / 16
    labels = torch.tensor(digits.target, device=device)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    held_out, seen = order[:360], order[360:]

    net = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    ).to(device)
    model = DistributedDataParallel(net)
    if plan:
        options = {"compress": compress, "error_feedback": True} if compress else {}
        model.register_comm_hook(None, topoplan.ddp_hook(plan, **options))  # <- the one line
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

    started = time.perf_counter()
    for epoch in range(epochs):
        shuffled = seen[torch.randperm(len(seen), generator=torch.Generator().manual_seed(epoch))]
        for batch in shuffled[: len(shuffled) // 64 * 64].view(-1, 64):
            samples = batch[rank * 64 // world : (rank + 1) * 64 // world]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[samples]), labels[samples])
            loss.backward()
            optimizer.step()
    seconds = time.perf_counter() - started
    with torch.no_grad():
        accuracy = (net(images[held_out]).argmax(1) == labels[held_out]).float().mean().item()
    return (
        f"{world} ranks, {epochs} epochs in {seconds:.1f} s, last loss {loss.item():.4f}, "
        f"accuracy {accuracy:.2%}"
    )


if __name__ == "__main__":
    main()
