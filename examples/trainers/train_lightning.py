"""Lightning: its DDPStrategy under the backend "topo".

python examples/trainers/train_lightning.py         Lightning starts the other ranks itself
"""

from __future__ import annotations

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from problem import BATCH, make_data, make_network, report
from torch.utils.data import DataLoader


class Classifier(lightning.LightningModule):
    """The network with its loss and optimizer, as Lightning wants them."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.losses = make_network(), list[float]()

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        features, classes = batch
        loss = torch.nn.functional.cross_entropy(self.network(features), classes)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def on_train_end(self) -> None:
        """Report, while DDP and its hook are there: when fit() returns Lightning has let go of
        both.
        """
        report(self.losses, self.state_dict())


def main() -> None:
    """Train, with as little around it as Lightning allows."""
    model = Classifier()
    # gloo: strategy = DDPStrategy(process_group_backend="gloo")
    strategy = DDPStrategy(process_group_backend="topo")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=4,
        strategy=strategy,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(make_data(), batch_size=BATCH))


if __name__ == "__main__":
    main()
