"""Hugging Face's Trainer under the backend "topo": the group is made before the TrainingArguments,
which then take it.

torchrun --nproc-per-node 4 examples/trainers/train_transformers.py
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
from problem import BATCH, make_data, make_network, report
from torch import nn
from transformers import Trainer, TrainingArguments


class Classifier(nn.Module):
    """The network as Trainer expects one: it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network = make_network()

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss and the scores of a batch."""
        scores = self.network(features)
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


def main() -> None:
    """Train one epoch."""
    # gloo: no such line
    dist.init_process_group("topo")
    data = [{"features": features, "labels": label} for features, label in make_data()]
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            use_cpu=True,
            optim="sgd",
            learning_rate=0.1,
            lr_scheduler_type="constant",
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        model = Classifier()
        trainer = Trainer(model, args, train_dataset=data)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    report(losses, model.network.state_dict())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
