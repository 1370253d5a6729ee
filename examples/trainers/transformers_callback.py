"""A callback for Hugging Face's Trainer that logs what plans save.

Trainer(..., callbacks=[LogSavings()])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import topoplan


class LogSavings(TrainerCallback):
    """Log the estimated share of communication time saved after some steps, and at the end.

    Rank 0 prints a line; the Trainer's log history gets `communication_saved`.
    """

    def __init__(self, after_steps: int = 50) -> None:
        self.after_steps = after_steps

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Log once, when the races of the first steps are over."""
        if state.global_step == self.after_steps:
            _log(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Log while the groups are there."""
        _log(state)


def _log(state: TrainerState) -> None:
    if not state.is_world_process_zero:
        return
    summary = topoplan.summary()
    print(f"topoplan, step {state.global_step}: {summary.line}", flush=True)
    if summary.saved is not None:
        entry = {"communication_saved": summary.saved, "step": state.global_step}
        state.log_history.append(entry)
