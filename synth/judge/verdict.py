"""What is found about a file: its measurements and channels beside the bounds, and what is to be
said of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .found import Communicator, Finding, Measurement, Reading
from .limits import Limits
from .machine import Machine
from .options import Options
from .places import Placed
from .rates import RINGS, TREES, Rate

# How many times the bound a measurement must be to count as above it: tables round to two digits.
ABOVE = 1.005


@dataclass(frozen=True)
class Row:
    """A measurement, its share of the bound for one way a pair, and what a plan is predicted to
    reach at its size.
    """

    measured: Measurement
    share: float | None
    plan_GBps: float | None = None


@dataclass
class Measured:
    """The measurements of one collective; `peak` is the fastest, by which the collective is
    judged.
    """

    collective: str
    ranks: int
    rows: list[Row]
    limits: Limits | None = None
    placed: Placed | None = None
    options: Options | None = None
    why_not: str = ""

    @property
    def peak(self) -> Row:
        """The row with the highest algbw."""
        return max(self.rows, key=lambda row: row.measured.algbw_GBps)

    @property
    def is_above(self) -> bool:
        """Whether more was measured than the bound allows."""
        return self.peak.share is not None and self.peak.share > ABOVE


@dataclass
class Channelled:
    """A communicator's channels and what they reach; `taken` is what NCCL would take for large
    allreduces, as far as that is known: RING, TREE, NVLS, or empty.
    """

    communicator: Communicator
    rates: dict[str, list[Rate]] = field(default_factory=dict)
    """By collective."""
    limits: dict[str, Limits] = field(default_factory=dict)
    options: dict[str, Options] = field(default_factory=dict)
    placed: Placed | None = None
    taken: str = ""
    why_not: str = ""

    def rate(self, collective: str, shape: str) -> Rate | None:
        """Return the rate of a shape for a collective, None where it has none."""
        return next((rate for rate in self.rates.get(collective, ()) if rate.shape == shape), None)

    def judged(self, collective: str) -> Rate | None:
        """Return the rate of what NCCL takes; of the better shape, where that is not known."""
        taken = (
            {"RING": RINGS, "TREE": TREES}.get(self.taken) if collective == "allreduce" else RINGS
        )
        rate = self.rate(collective, taken) if taken else None
        return rate or max(self.rates.get(collective, ()), key=lambda r: r.algbw_GBps, default=None)

    def share(self, collective: str) -> float | None:
        """Return the share of the bound that `judged` reaches."""
        rate, limits = self.judged(collective), self.limits.get(collective)
        return (
            None if rate is None or limits is None else float(rate.algbw_GBps / limits.one_way_GBps)
        )


@dataclass
class Verdict:
    """What is to be said of one file."""

    reading: Reading
    machine: Machine
    measured: list[Measured] = field(default_factory=list)
    channelled: list[Channelled] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def shares(self) -> list[tuple[str, float]]:
        """What is judged, in words, and its share of the bound: measurements, and where there are
        none, channels.
        """
        by_measurement = [
            (f"{m.collective} on {m.ranks} ranks, measured", m.peak.share)
            for m in self.measured
            if m.peak.share is not None
        ]
        return by_measurement or [
            (f"{name} on {c.communicator.ranks} ranks, by its channels", share)
            for c in self.channelled
            for name in c.rates
            if (share := c.share(name)) is not None
        ]
