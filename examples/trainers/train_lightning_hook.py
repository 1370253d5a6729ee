"""Lightning with DDP's communication hook, on stock gloo.

    topo-synth allreduce full:4 -o plan.json
    python examples/trainers/train_lightning_hook.py    Lightning starts the other ranks itself

On GPUs DDPStrategy(ddp_comm_hook=topoplan.ddp_hook("plan.json")) does the same; on CPUs Lightning
ignores that argument.
"""

from __future__ import annotations

import lightning
from problem import BATCH, make_data
from torch.utils.data import DataLoader
from train_lightning import Classifier

# gloo: no such line
import topoplan


def main() -> None:
    """Train with the fewest lines that Lightning allows."""
    model = Classifier()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=4,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # fmt: off
    # gloo: no such line
    model.on_train_start = lambda: trainer.model.register_comm_hook(None, topoplan.ddp_hook("plan.json", choose="plan"))
    # fmt: on
    trainer.fit(model, DataLoader(make_data(), batch_size=BATCH))


if __name__ == "__main__":
    main()
