"""Define the rows of a report: what was measured of a system over a network, or why nothing was."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunResult:
    """One system over one network.

    Times are the slowest rank's, in seconds. `epoch_s` is the median without the first epoch (if
    there are others), in which schedules race and DDP settles its buckets. `bytes_per_epoch` is
    what all ranks together send, with the same median. `reason` says why there are no figures;
    `failed` is set if the run was started and failed.
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
    def site(self) -> tuple[str, int]:
        """Network and number of ranks; results of one site are compared."""
        return self.network, self.ranks


def summarize(network: str, ranks: int, measured: dict[str, Any], tested: int) -> RunResult:
    """Return a system's result from rank 0's measurements; `tested` samples were held out."""
    seconds, sent = measured["seconds"], measured["bytes"]
    later = seconds[1:] or seconds
    quarters = statistics.quantiles(later, n=4) if len(later) > 3 else None
    return RunResult(
        network=network,
        ranks=ranks,
        system=measured["system"],
        schedule=measured["schedule"],
        first_epoch_s=seconds[0],
        epoch_s=statistics.median(later),
        spread=None if quarters is None else (quarters[2] - quarters[0]) / statistics.median(later),
        bytes_per_epoch=None if sent is None else round(statistics.median(sent[1:] or sent)),
        accuracy_percent=100 * measured["correct"] / tested,
        loss=measured["loss"],
        replicas_equal=measured["replicas_equal"],
    )
