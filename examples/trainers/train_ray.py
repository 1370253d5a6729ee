"""Ray Train: its TorchTrainer under the backend "topo".

python examples/trainers/train_ray.py               Ray starts the ranks itself
"""

from __future__ import annotations

from pathlib import Path

import ray
import torch
from problem import BATCH, make_data, make_network, report
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader


def train() -> None:
    """Train one epoch, on every worker."""
    network = make_network()
    model = prepare_model(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for features, classes in prepare_data_loader(DataLoader(make_data(), batch_size=BATCH)):
        loss = torch.nn.functional.cross_entropy(model(features), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report(losses, network.state_dict())


def main() -> None:
    """Start Ray on this host, and the workers."""
    ray.init(num_cpus=2, include_dashboard=False)
    # gloo: backend = TorchConfig(backend="gloo")
    backend = TorchConfig(backend="topo")
    size, folder = ScalingConfig(num_workers=2), RunConfig(storage_path=str(Path.cwd()))
    TorchTrainer(train, torch_config=backend, scaling_config=size, run_config=folder).fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
