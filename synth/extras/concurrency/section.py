"""What a plan with limits says of itself: the limits, and the bound under them.

Limits are on the transfers at a time through devices (limits.py). Handovers are the messages by
which ranks tell each other that a device is free (handovers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from ....topo.errors import InputError, VerificationError
from ....topo.graph import Topology
from ....topo.schema import Count, Label
from ...bounds.assumptions import list_assumptions
from ...bounds.certificate import Bound, BoundFields
from ...describe import limit_text
from ...ir.schedule import Schedule
from ...plan import Plan
from ...section import SectionKind
from . import bound as bounds
from .handovers import find_handovers, find_waits_us
from .limits import Limits
from .replay import check_concurrency

NAME = "concurrent"


class ConcurrentFields(Struct, forbid_unknown_fields=True):
    """The limits that all schedules of a plan keep, and the bound on such schedules."""

    limits: Annotated[
        dict[Label, Count],
        Meta(
            min_length=1,
            description='"gpu", "switch", "root" or a device\'s id: the most transfers at a time',
        ),
    ]
    bound: Annotated[
        BoundFields | None,
        Meta(description="of the machine in which limited devices are links; null if unknown"),
    ] = None


class ConcurrentField(Struct, forbid_unknown_fields=True):
    """The field of a plan's file."""

    concurrent: Annotated[
        ConcurrentFields | UnsetType,
        Meta(description="absent where transfers need not take turns"),
    ] = UNSET


@dataclass(frozen=True)
class Concurrent:
    """The section of a plan with limits (see PlanSection): these, and the bound under them.

    `bound` is None where none is known, as on machines whose switches add. Only the runner "turns"
    keeps the limits at run time.
    """

    limits: Limits
    bound: Bound | None

    name, version, runner = NAME, 2, "turns"

    def to_json(self, numbers: dict[Schedule, int]) -> dict[str, Any]:
        """Return the JSON content of the field `concurrent`; `numbers` are not needed."""
        return {
            "limits": dict(self.limits.most),
            "bound": self.bound and self.bound.to_json(),
        }

    def verify(self, plan: Plan) -> None:
        """Raise VerificationError unless what it says of its plan holds."""
        try:
            most = self.limits.find_devices(plan.topology)
        except InputError as error:
            raise VerificationError(str(error)) from None
        for schedule in dict.fromkeys(plan.schedules):
            check_concurrency(schedule, plan.topology, most, str(self.limits))
        if self.bound is not None:
            ports = self.limits.find_ports(plan.topology)
            bounds.check(self.bound, plan.collective, plan.topology, ports)

    def verify_rest(self, plan: Plan) -> None:
        """Do nothing: all is verified whenever the plan is."""

    def find_waits_us(self, schedule: Schedule, topology: Topology) -> Fraction:
        """Return the microseconds that a schedule waits for handovers, by the cost model."""
        return find_waits_us(schedule, topology, self.limits.find_ports(topology))

    def list_lines(self, plan: Plan) -> list[str]:
        """Return what a description of its plan says of it."""
        lines = [
            f"concurrent: with {self.limits.describe()}; times count that, and that ranks wait "
            "for each other's token between steps"
        ]
        if self.bound is not None:
            lines.append(
                f"so at most {limit_text(self.bound)} GB/s algbw; at large sizes the plan is "
                f"{float(self.find_gap(plan) or 0):.1%} below (bound and gap of the table are for "
                "any number of transfers)"
            )
        return lines

    def list_figures(self, plan: Plan) -> dict[str, Any]:
        """Return the fields of topo-synth's JSON about its plan."""
        gap, last = self.find_gap(plan), plan.entries[-1].schedule
        ports = self.limits.find_ports(plan.topology)
        figures: dict[str, Any] = {
            "limits": dict(self.limits.most),
            "assumes": f"with {self.limits.describe()}",
            "handovers": len(find_handovers(last, plan.topology, ports)),
            "bound": None,
            "gap": None if gap is None else float(gap),
        }
        if self.bound is not None:
            figures["bound"] = {
                "algbw_GBps": float(self.bound.algbw_GBps),
                "algbw_GBps_exact": str(self.bound.algbw_GBps),
                "kind": self.bound.kind,
                "assumes": [str(x) for x in list_assumptions(self.bound, plan.topology)],
            }
        return {self.name: figures}

    def find_gap(self, plan: Plan) -> Fraction | None:
        """Return how far the schedule for large sizes is below the bound, as a share of it.

        None if no bound is known, or the schedule uses no links.
        """
        limit_GBps = plan.limit_GBps(plan.entries[-1])
        if self.bound is None or limit_GBps is None:
            return None
        return 1 - limit_GBps * self.bound.s_per_GB


def _read(field: ConcurrentField, schedules: Sequence[Schedule], where: str) -> Concurrent:
    fields = field.concurrent
    assert fields is not UNSET
    return Concurrent(
        Limits(tuple(sorted(fields.limits.items()))),
        None if fields.bound is None else Bound.from_fields(fields.bound),
    )


CONCURRENT = SectionKind(ConcurrentField, _read)
