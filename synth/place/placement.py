"""The result of placing: an order, its communication time and the given order's, and a bound."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..sizes import show_size
from .job import Job, Traffic
from .proof.check import NOTHING, SEARCH, TIERS, PlaceBound

# A bound within this share of the time counts as met, since its logarithms are rounded.
EQUAL = Fraction(1, 10**9)
# The proof of a bound of each kind, in words.
_PROOFS = {
    TIERS: "by what must leave hosts, leaves and GPUs; with a certificate",
    SEARCH: "by exhaustive search",
    NOTHING: "nothing is sent",
}


@dataclass(frozen=True)
class Step:
    """The seconds of one traffic of the job, in the best order and in the given one."""

    traffic: Traffic
    seconds: Fraction
    given_seconds: Fraction


@dataclass(frozen=True)
class Placement:
    """The GPU of each rank: its number `order[r]` in the topology's list, and its id `gpus[r]`.

    topo-emulate takes orders as such numbers. `given` is the order before placing, in these numbers
    too. `seconds` is the objective in this order, `given_seconds` in the `given` one. No order
    takes less than `bound.seconds`. `busiest` names the link that is busy longest; it is empty if
    nothing is sent. `search_complete` is False if a time limit stopped a search early.
    """

    name: str
    job: Job
    target: str
    objective: str
    order: tuple[int, ...]
    gpus: tuple[str, ...]
    given: tuple[int, ...]
    seconds: Fraction
    given_seconds: Fraction
    bound: PlaceBound
    steps: tuple[Step, ...]
    busiest: str
    search_complete: bool
    notes: tuple[str, ...]

    @property
    def gain(self) -> Fraction:
        """The ratio of the given order's time to the time of this order."""
        return self.given_seconds / self.seconds if self.seconds else Fraction(1)

    @property
    def gap(self) -> Fraction:
        """1 - bound / seconds: the largest share by which another order might be faster."""
        return 1 - self.bound.seconds / self.seconds if self.seconds else Fraction(0)

    @property
    def is_optimal(self) -> bool:
        """Whether provably no order takes less."""
        return self.gap <= EQUAL

    def __repr__(self) -> str:
        return (
            f"<Placement of {len(self.order)} ranks on {self.name}: gain {float(self.gain):.3g}, "
            f"gap {float(self.gap):.1%}>"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of topo-place (docs/place.md)."""
        return {
            "topology": self.name,
            "ranks": len(self.order),
            "job": dict(self.job.dimensions),
            "for": self.target,
            "objective": self.objective,
            "order": list(self.order),
            "gpus": list(self.gpus),
            "given": list(self.given),
            "time_s": float(self.seconds),
            "given_time_s": float(self.given_seconds),
            "gain": float(self.gain),
            "bound": self.bound.to_json(),
            "gap": float(self.gap),
            "optimal": self.is_optimal,
            "search_complete": self.search_complete,
            "busiest": self.busiest,
            "phases": [
                {
                    "dimension": step.traffic.dimension,
                    "collective": step.traffic.collective,
                    "size_bytes": step.traffic.size_bytes,
                    "time_s": float(step.seconds),
                    "given_time_s": float(step.given_seconds),
                }
                for step in self.steps
            ],
            "notes": list(self.notes),
        }

    def describe(self) -> str:
        """Format the placement as text."""
        mesh = " x ".join(f"{name} {size}" for name, size in self.job.dimensions)
        what = "communication" if self.objective == "time" else "the busiest link"
        better = f"another may be faster by {float(self.gap):.1%} at most"
        lines = [
            f"{self.name}: {len(self.order)} ranks ({mesh}), for {self.target}",
            f"{what} of a step: {_show(self.seconds)}, in the given order "
            f"{_show(self.given_seconds)}: gain {float(self.gain):.2f}",
            f"no order takes less than {_show(self.bound.seconds)} ({_PROOFS[self.bound.kind]}): "
            f"{'this one is optimal' if self.is_optimal else better}",
        ]
        if self.steps:
            lines.append(
                f"{'dimension':>12} {'collective':>15} {'buffer':>10} {'time':>12} {'given':>12}"
            )
        for step in self.steps:
            t = step.traffic
            lines.append(
                f"{t.dimension:>12} {t.collective:>15} {show_size(t.size_bytes):>10} "
                f"{_show(step.seconds):>12} {_show(step.given_seconds):>12}"
            )
        if self.busiest:
            lines.append(f"busiest: {self.busiest}")
        lines += [f"note: {note}" for note in self.notes]
        lines += ["the given order stays"] if self.order == self.given else []
        return "\n".join([*lines, f"order: {','.join(map(str, self.order))}"]) + "\n"


def _show(seconds: Fraction) -> str:
    us = float(seconds) * 1e6
    return f"{us:.4g} us" if us < 1e3 else f"{us / 1e3:.4g} ms" if us < 1e6 else f"{us / 1e6:.4g} s"
