"""A training script that knows nothing of topoplan: torchrun starts it, and a test trains the same
model in one process.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def dataset() -> TensorDataset:
    torch.manual_seed(1)
    x = torch.randn(256, 20)
    return TensorDataset(x, x @ torch.randn(20, 1))


def network() -> torch.nn.Sequential:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))


def train(model: torch.nn.Module, loader: Iterable[Sequence[torch.Tensor]], epochs: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()


def main() -> None:
    dist.init_process_group(backend="gloo")
    data = dataset()
    model = DDP(network())
    train(model, DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False)), 3)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "snapshot.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
