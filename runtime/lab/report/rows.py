"""The rows of a report: what one system did over one network, or why it did not."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """Times are the slowest rank's, in seconds; `epoch_s` is the median without the first epoch (where there is another),
    in which schedules race and DDP settles its buckets. `bytes_per_epoch` is what all ranks together send, the median
    likewise. `reason` says why there are no figures; `failed` that this was a fault.
    """

    network: str
    ranks: int
    system: str
    schedule: str = ""
    first_epoch_s: float | None = None
    epoch_s: float | None = None
    spread: float | None = None
    bytes_per_epoch: int | None = None
    accuracy_percent: float | None = None
    serial_points: float | None = None
    loss: float | None = None
    replicas_equal: bool | None = None
    reason: str | None = None
    failed: bool = False

    @property
    def place(self) -> tuple[str, int]:
        """Rows of the same network and number of ranks stand side by side."""
        return self.network, self.ranks


def measured(network: str, ranks: int, found: dict[str, Any], tested: int) -> Row:
    """The row of what rank.py found, on so many held-out samples."""
    seconds = found["seconds"]
    later = seconds[1:] or seconds
    moved = found["bytes"]
    quarters = statistics.quantiles(later, n=4) if len(later) > 3 else None
    return Row(
        network=network,
        ranks=ranks,
        system=found["system"],
        schedule=found["schedule"],
        first_epoch_s=seconds[0],
        epoch_s=statistics.median(later),
        spread=None if quarters is None else (quarters[2] - quarters[0]) / statistics.median(later),
        bytes_per_epoch=None if moved is None else round(statistics.median(moved[1:] or moved)),
        accuracy_percent=100 * found["correct"] / tested,
        loss=found["loss"],
        replicas_equal=found["replicas_equal"],
    )
