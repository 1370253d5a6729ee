"""A callback for Lightning that logs what plans save: Trainer(callbacks=[LogSavings()])."""

from __future__ import annotations

from typing import Any

import lightning

import topoplan


class LogSavings(lightning.Callback):
    """Log the estimated share of communication time saved after some steps, and at the end.

    Rank 0 prints a line; the logger of the Trainer, if it has one, gets `communication_saved`.
    """

    def __init__(self, after_steps: int = 50) -> None:
        self.after_steps = after_steps

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any
    ) -> None:
        """Log once, when the races of the first steps are over."""
        if trainer.global_step == self.after_steps:
            self._log(trainer)

    def on_train_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Log while the hook and the groups are there."""
        self._log(trainer)

    def _log(self, trainer: lightning.Trainer) -> None:
        if not trainer.is_global_zero:
            return
        summary = topoplan.summary()
        print(f"topoplan, step {trainer.global_step}: {summary.line}", flush=True)
        if trainer.logger is not None and summary.saved is not None:
            trainer.logger.log_metrics({"communication_saved": summary.saved}, trainer.global_step)
