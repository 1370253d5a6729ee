"""The result of placing: an order, its communication time and the given order's, and a bound.

An order says which GPU each rank gets; the given one is the order before placing. The bound is a
time that no order beats.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ....topo.output_head import output_head
from ...ir.schedule_text import count
from ...sizes import show_size
from .domains import Stay
from .job import DIRECT, Job, Traffic
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
    """The seconds that one traffic of the job takes in a training step, in two orders.

    A traffic is one collective of all groups of a dimension. `seconds` is its time in the order
    found, `given_seconds` that in the given order; they include the latencies of its calls,
    `latency_seconds` and `given_latency_seconds`.
    """

    traffic: Traffic
    seconds: Fraction
    given_seconds: Fraction
    latency_seconds: Fraction = Fraction(0)
    given_latency_seconds: Fraction = Fraction(0)


@dataclass(frozen=True)
class Placement:
    """The order found for a job's ranks, its communication time, and a lower bound on all orders'.

    Rank r gets GPU number order[r] of the topology, whose id is gpus[r]; topo-emulate takes orders
    as such numbers. `given` is the order before placing. `name` is the topology's. `target` says
    whose algorithms are assumed ("ring", "stock" or "plan") and `objective` what is minimized
    ("time" or "bottleneck"), as for `place` in placing.py. `seconds` is the objective, in seconds
    per training step, in this order, `given_seconds` in the given one. No order takes less than
    `bound.seconds`. `busiest` names the link that is busy longest; it is empty if nothing is sent.
    `search_complete` is False if a time limit stopped a search early. `stays` are the dimensions
    whose groups fit into a host or an NVLink domain each. `steps` are the seconds of each traffic;
    `notes` are assumptions made.
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
    stays: tuple[Stay, ...] = ()

    @property
    def gain(self) -> Fraction:
        """The ratio of the given order's time to the time of this order."""
        return self.given_seconds / self.seconds if self.seconds else Fraction(1)

    @property
    def gap(self) -> Fraction:
        """The relative gap 1 - bound / seconds: the most that another order could save."""
        return 1 - self.bound.seconds / self.seconds if self.seconds else Fraction(0)

    @property
    def is_optimal(self) -> bool:
        """Whether it is proved that no order takes less time, up to rounding."""
        return self.gap <= EQUAL

    def __repr__(self) -> str:
        return (
            f"<Placement of {len(self.order)} ranks on {self.name}: gain {float(self.gain):.3g}, "
            f"gap {float(self.gap):.1%}>"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of topo-place (docs/place.md)."""
        return {
            **output_head("topoplan-place"),
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
                    "calls": step.traffic.calls,
                    "call_bytes": step.traffic.call_bytes,
                    "calls_assumed": step.traffic.reason or None,
                    "latency_s": float(step.latency_seconds),
                    "given_latency_s": float(step.given_latency_seconds),
                }
                for step in self.steps
            ],
            "domains": [stay.to_json() for stay in self.stays],
            "warnings": self.list_warnings(),
            "notes": list(self.notes),
        }

    def list_warnings(self) -> list[str]:
        """Return a line for each dimension that leaves hosts into which its groups fit.

        Data and pipeline parallelism may, and sharded data parallelism if others fill the hosts.
        """
        return [self._warn(stay) for stay in self.stays if stay.is_loud]

    def _warn(self, stay: Stay) -> str:
        name = stay.dimension
        line = (
            f"{name} leaves its {stay.domain}s: a group of {stay.size} fits into one, and in this "
            f"order has ranks in {stay.parts}; "
        )
        if stay.together_s is None:
            line += "no order that keeps each in one was found"
        else:
            line += (
                f"keeping each in one costs {_show(stay.together_s - self.seconds)} a step more "
                f"({_show(stay.together_s)} in all)"
            )
        if name in self._list_silent():
            line += f"; no traffic of {name} is given: say what it sends, such as {name}=96x64M"
        return line

    def _list_silent(self) -> list[str]:
        """Return the dimensions of which the job gives no traffic."""
        busy = {step.traffic.dimension for step in self.steps}
        if not busy or DIRECT in busy:
            return []
        return [name for name, size in self.job.dimensions if size > 1 and name not in busy]

    def _explain_stay(self, stay: Stay) -> str | None:
        """Return why a dimension stays inside hosts; None if no order that divides it is slower."""
        steps = [step for step in self.steps if step.traffic.dimension == stay.dimension]
        if stay.parts > 1 or not steps or not stay.divided_s or stay.divided_s <= self.seconds:
            return None
        seconds = sum((step.seconds for step in steps), Fraction(0))
        calls = sum(step.traffic.calls for step in steps)
        return (
            f"{stay.dimension} stays inside each {stay.domain}, where its {count(calls, 'call')} "
            f"of a step {'takes' if calls == 1 else 'take'} {_show(seconds)}; the best order tried "
            f"that divides its groups takes {_show(stay.divided_s - self.seconds)} more"
        )

    def describe(self) -> str:
        """Format the placement as text."""
        mesh = " x ".join(f"{name} {size}" for name, size in self.job.dimensions)
        what = "communication" if self.objective == "time" else "the busiest link"
        better = f"another may be faster by {max(float(self.gap), 0.001):.1%} at most"
        silent = " and ".join(self._list_silent())
        optimal = f"this one is optimal{f', without traffic of {silent}' if silent else ''}"
        lines = [
            f"{self.name}: {len(self.order)} ranks ({mesh}), for {self.target}",
            f"{what} of a step: {_show(self.seconds)}, in the given order "
            f"{_show(self.given_seconds)}: gain {float(self.gain):.2f}",
            f"no order takes less than {_show(self.bound.seconds)} ({_PROOFS[self.bound.kind]}): "
            f"{optimal if self.is_optimal else better}",
        ]
        lines += [f"WARNING: {line}" for line in self.list_warnings()]
        if self.steps:
            lines.append(
                f"{'dimension':>12} {'collective':>15} {'calls':>6} {'buffer':>10} {'time':>12} "
                f"{'latency':>12} {'given':>12}"
            )
        for step in self.steps:
            t = step.traffic
            lines.append(
                f"{t.dimension:>12} {t.collective:>15} {t.calls:>6} "
                f"{show_size(t.call_bytes):>10} {_show(step.seconds):>12} "
                f"{_show(step.latency_seconds):>12} {_show(step.given_seconds):>12}"
            )
        if self.busiest:
            lines.append(f"busiest: {self.busiest}")
        lines += filter(None, map(self._explain_stay, self.stays))
        lines += [f"note: {note}" for note in self.notes]
        lines += ["the given order stays"] if self.order == self.given else []
        return "\n".join([*lines, f"order: {','.join(map(str, self.order))}"]) + "\n"


def note_calls(job: Job) -> list[str]:
    """Return sentences on the numbers of calls that were assumed, and why."""
    return [
        f"{t.dimension}: {count(t.calls, 'call')} of {t.collective} a step assumed ({t.reason}), "
        f"{show_size(t.call_bytes)} each; {t.dimension}=Nx{t.collective}:BYTES sets N calls"
        for t in job.traffics
        if t.reason
    ]


def _show(seconds: Fraction) -> str:
    us = float(seconds) * 1e6
    return f"{us:.4g} us" if us < 1e3 else f"{us / 1e3:.4g} ms" if us < 1e6 else f"{us / 1e6:.4g} s"
