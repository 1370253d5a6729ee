"""Train a transformer with FSDP2 (HSDP with --replicas 2), through plans, by the name of the
backend alone.

    torchrun --nproc-per-node 4 examples/train_fsdp.py                   plans for this machine
    torchrun --nproc-per-node 4 examples/train_fsdp.py --backend gloo    stock
    torchrun --nproc-per-node 4 examples/train_fsdp.py --replicas 2      sharded over 2, twice

On several hosts, the same on each:
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        examples/train_fsdp.py

FSDP gathers parameters before a layer and scatters the sums of gradients after it; HSDP averages
those between replicas. The backend "topo" carries all three out by plans, which rank 0 synthesizes
when they are first needed, and keeps.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import topoplan.runtime.register  # noqa: F401  (not needed where topoplan is installed: torch finds the backend itself)

VOCABULARY, WIDTH, CONTEXT = 64, 128, 32


class Transformer(nn.Module):
    """A small language model on whole numbers below VOCABULARY."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the token after each of `tokens`, (batch, CONTEXT)."""
        x = self.embed(tokens) + self.place
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        return self.head(x).clone()  # no view: FSDP hooks what a module returns


def main() -> None:
    """Join the other ranks, train, and print losses from rank 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="topo", help="topo (default), gloo or nccl")
    parser.add_argument("--replicas", type=int, default=1, help="more than 1: HSDP")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()

    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend)
    world = dist.get_world_size()
    if args.replicas > 1:
        mesh = init_device_mesh(
            device.type,
            (args.replicas, world // args.replicas),
            mesh_dim_names=("replicas", "shards"),
        )
    else:
        mesh = init_device_mesh(device.type, (world,))
    train(args, mesh, device)
    dist.barrier()
    dist.destroy_process_group()


def train(args: argparse.Namespace, mesh: dist.DeviceMesh, device: torch.device) -> None:
    """Train on sequences that count up from a random number in random steps, so that the next
    number can be learnt.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Transformer(args.layers).to(device)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    numbers = torch.Generator().manual_seed(dist.get_rank())
    losses, started = [], time.perf_counter()
    for step in range(args.steps):
        if step == 5:
            started = time.perf_counter()  # plans are synthesized and raced in the first steps
        first = torch.randint(VOCABULARY, (16, 1), generator=numbers)
        stride = torch.randint(1, 5, (16, 1), generator=numbers)
        tokens = ((first + stride * torch.arange(CONTEXT + 1)) % VOCABULARY).to(device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    seconds = (time.perf_counter() - started) / max(1, args.steps - 5)
    if dist.get_rank() == 0:
        how = f"{args.replicas} replicas of {dist.get_world_size() // args.replicas} shards"
        print(
            f"{args.backend}, {how}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, "
            f"{seconds * 1e3:.0f} ms a step"
        )


if __name__ == "__main__":
    main()
