"""A transformer under FSDP2 and tensor parallelism on a 2-D mesh, as torchtitan has it: torch
alone.

torchrun --nproc-per-node 4 examples/trainers/train_fsdp_tp.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from problem import report
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

WORDS, WIDTH, HEADS, LENGTH = 128, 64, 4, 32


class Attention(nn.Module):
    """Causal self-attention; with tensor parallelism each rank has some of the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each word takes from those before it."""
        q, k, v = (
            part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class Layer(nn.Module):
    """Attention and a feed-forward network, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.ffn_norm, self.ffn = nn.RMSNorm(WIDTH), nn.Sequential()
        self.ffn.add_module("up", nn.Linear(WIDTH, 4 * WIDTH))
        self.ffn.add_module("act", nn.GELU())
        self.ffn.add_module("down", nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the words after this layer."""
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.ffn(self.ffn_norm(x))
        return result


class Transformer(nn.Module):
    """A language model; `layers` are what is sharded one by one."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the scores of each word's successor."""
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        result: torch.Tensor = self.head(self.norm(x))
        return result.clone()  # no view: FSDP hooks what a module returns


def make_parallel(mesh: DeviceMesh, layers: int) -> Transformer:
    """Return the model, its layers split over the mesh's "tp" ranks and sharded over its "dp"
    ranks.
    """
    torch.manual_seed(0)
    model = Transformer(layers)
    tp, dp = mesh["tp"], mesh["dp"]
    ends = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    inner = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "ffn": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "ffn.up": ColwiseParallel(),
        "ffn.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(model, tp, ends)
    for layer in model.layers:
        parallelize_module(layer, tp, inner)
        fully_shard(layer, mesh=dp)
    fully_shard(model, mesh=dp)
    return model


def train(
    mesh: DeviceMesh, layers: int = 2, steps: int = 6
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return this rank's losses, and the parameters whole."""
    model = make_parallel(mesh, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    numbers = torch.Generator().manual_seed(
        mesh["dp"].get_local_rank()
    )  # ranks that share a model share its data
    losses = []
    for _ in range(steps):
        first, stride = torch.randint(1, 5, (2, 8, 1), generator=numbers)
        words = (first + stride * torch.arange(LENGTH + 1)) % WORDS
        loss = nn.functional.cross_entropy(
            model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    whole = {
        name: p.full_tensor() for name, p in model.named_parameters() if isinstance(p, DTensor)
    }
    return losses, whole


def main() -> None:
    """Join the other ranks, and train."""
    # gloo: dist.init_process_group("gloo")
    dist.init_process_group("topo")
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    report(*train(mesh))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
