"""A joint plan: plans of several groups that run at once and share the links, in one file.

A call is one group's collective with its bytes and weight. Each group has a plan of its own, whose
members and helpers have their numbers in the whole topology, and a share of every link that it
uses. The step durations of its schedules are those of the shares. The file is self-contained; all
that it claims is verified before it is saved and after it is loaded: every plan by itself, every
schedule again on its shares of the links, that no link is shared out more than once, and the
certificates of the joint bounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ....topo.errors import InputError, TopoplanError, VerificationError
from ....topo.exact import fraction_to_json
from ....topo.files import write_whole
from ....topo.graph import Topology
from ....topo.hardware_rule import HARDWARE
from ....topo.routes import Router
from ....topo.schema import Index, Label, read_as
from ...cost.affine import bandwidth_s_per_GB, costs_between_gpus
from ...cost.loads import DirectedLink
from ...ir.collective import spell_collective
from ...ir.schedule import Schedule
from ...plan import Plan
from ...plan_text import check_hash, dumps, hash_of, parse, read_text
from ...verify import verify
from .bound import MULTIPATH_KIND, JointBound, JointBoundFields, check_joint_bound
from .joint_calls import JointCall, check_calls

FORMAT = "topoplan-joint-plan"
# Only files of this version are read.
VERSION = 1
# Groups in a file: 64 kinds of 64 groups.
MAX_GROUPS = 4096


class GroupFields(Struct, forbid_unknown_fields=True):
    """One group's call, its share of each link, and its plan."""

    kind: Label
    size_bytes: Annotated[int, Meta(ge=1)]
    weight: Fraction
    shares: Annotated[
        list[tuple[Label, Label, Fraction]],
        Meta(description="source, destination, share of the link's bandwidth; of others it has 0"),
    ]
    plan: Annotated[
        dict[str, Any],
        Meta(description="as in plan.schema.json, without topology and hash"),
    ]


class JointPlanFile(Struct, forbid_unknown_fields=True):
    """Plans of groups that run at once, their shares of the links, and the joint bounds."""

    format: Literal["topoplan-joint-plan"]
    version: Literal[1]
    fingerprint: Label
    helpers: Annotated[
        list[Index],
        Meta(description="ranks that may help groups of which they are no members"),
    ]
    bound: Annotated[JointBoundFields, Meta(description="for any use of the links")]
    bound_one_way: Annotated[
        JointBoundFields, Meta(description="for schedules on the hardware's routes")
    ]
    groups: Annotated[list[GroupFields], Meta(min_length=1, max_length=MAX_GROUPS)]
    topology: Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "topology.schema.json"})]
    hash: Annotated[Label, Meta(description="SHA-256 of the rest in canonical form, in hex")] = ""


@dataclass(frozen=True)
class GroupPlan:
    """One group's part of a joint plan: its call, its plan, and its share of each link.

    `shares` maps directed links to fractions of their bandwidth; the plan uses no other links. The
    plan's topology is the whole machine.
    """

    call: JointCall
    plan: Plan
    shares: Mapping[DirectedLink, Fraction] = field(hash=False)

    def __repr__(self) -> str:
        return f"<GroupPlan {self.call.name}: {self.call}>"

    @cached_property
    def machine(self) -> Topology:
        """The machine as the group sees it: each link with the group's share of its bandwidth."""
        return share_out(self.plan.topology, self.shares)

    @property
    def schedule(self) -> Schedule:
        """The schedule that the plan uses for the call's bytes."""
        return self.plan.entry_for(self.call.size_bytes).schedule

    @property
    def helpers(self) -> tuple[int, ...]:
        """The ranks that help in any of the plan's schedules, ascending."""
        return tuple(sorted({rank for s in self.plan.schedules for rank in s.helpers}))

    @cached_property
    def limit_s(self) -> Fraction:
        """The call's time in seconds on its shares of the links if only bandwidth counted."""
        piped = replace(self.schedule, segments=2, stepwise=False)
        return bandwidth_s_per_GB(piped, self.machine) * Fraction(self.call.size_bytes, 10**9)

    @cached_property
    def time_s(self) -> float:
        """The predicted time of the call in seconds on its shares of the links."""
        schedule = self.schedule
        costed = costs_between_gpus(schedule, self.machine, [schedule.segments])[0]
        return costed.time_s(self.call.size_bytes)


@dataclass(frozen=True)
class JointPlan:
    """Plans of several groups that run at once and share the links, with the joint bounds.

    Made by `synthesize_joint`, or read by `load`. `helpers` are the ranks that may help groups of
    which they are no members. `bound` holds for any use of the links, `bound_one_way` for schedules
    on the hardware's routes, which `router` gives.
    """

    topology: Topology
    groups: tuple[GroupPlan, ...]
    helpers: tuple[int, ...]
    bound: JointBound
    bound_one_way: JointBound
    router: Router = field(default=HARDWARE, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "router", self.router.on(self.topology))
        check_calls(self.calls, self.topology)
        for group in self.groups:
            if group.plan.topology != self.topology or group.plan.collective != (
                group.call.collective
            ):
                raise InputError(
                    f"joint plan: the plan of {group.call.name} is for {group.plan.collective} on "
                    f"{group.plan.topology.name!r}, not for {group.call.collective} on "
                    f"{self.topology.name!r}"
                )

    def __repr__(self) -> str:
        kinds = ", ".join(dict.fromkeys(call.kind for call in self.calls))
        return f"<JointPlan on {self.topology.name}: {len(self.groups)} groups of {kinds}>"

    @property
    def calls(self) -> list[JointCall]:
        """The groups' calls."""
        return [group.call for group in self.groups]

    def find(
        self, members: Iterable[int], collective: str | None = None, kind: str | None = None
    ) -> GroupPlan | None:
        """Return the group plan of the ranks `members`, None if there is none.

        Ranks have their numbers in the whole topology. `collective` (in any spelling) and `kind`
        restrict the search if the same ranks make several calls.
        """
        wanted = sorted(members)
        name = None if collective is None else spell_collective(collective)
        for group in self.groups:
            call = group.call
            same = list(call.collective.members) == wanted
            if same and name in (None, call.collective.name) and kind in (None, call.kind):
                return group
        return None

    def groups_of(self, rank: int) -> list[GroupPlan]:
        """Return the groups in which a rank takes part, as a member or as a helper."""
        return [
            group
            for group in self.groups
            if rank in group.call.collective.members or rank in group.helpers
        ]

    @property
    def limit_s(self) -> Fraction:
        """The time in seconds when all calls of weight 1 have ended, if only bandwidth counts."""
        return max(group.limit_s * group.call.weight for group in self.groups)

    @property
    def time_s(self) -> float:
        """The predicted time in seconds at which all calls of weight 1 have ended."""
        return max(group.time_s * float(group.call.weight) for group in self.groups)

    @property
    def gap(self) -> Fraction:
        """The relative gap to `bound_one_way` if only bandwidth counts; 0 is optimal."""
        return 1 - self.bound_one_way.time_s / self.limit_s

    def verify(self) -> None:
        """Verify every plan by itself and on its shares, the shares, and the bounds' certificates.

        Raise VerificationError if any of them fails.
        """
        total: dict[DirectedLink, Fraction] = defaultdict(Fraction)
        for group in self.groups:
            for link, share in group.shares.items():
                if link not in self.topology.capacity_GBps or share <= 0:
                    raise VerificationError(
                        f"joint plan: {group.call.name} has the share {share} of the link "
                        f"{link[0]!r} -> {link[1]!r}; expected more than 0, of a link that exists"
                    )
                total[link] += share
        for link, share in total.items():
            if share > 1:
                raise VerificationError(
                    f"joint plan: the shares of the link {link[0]!r} -> {link[1]!r} add up to "
                    f"{share}; expected at most 1"
                )
        may_help = set(self.helpers)
        for group in self.groups:
            if others := set(group.helpers) - may_help:
                raise VerificationError(
                    f"joint plan: rank {min(others)} helps {group.call.name}, but is not among the "
                    "helpers"
                )
            try:
                group.plan.verify()
                for schedule in dict.fromkeys(s.uncut for s in group.plan.schedules):
                    verify(schedule, group.machine)
            except VerificationError as error:
                raise VerificationError(f"joint plan: {group.call.name}: {error}") from None
        for bound in (self.bound, self.bound_one_way):
            check_joint_bound(bound, self.calls, self.helpers, self.router)
        if self.bound.kind != MULTIPATH_KIND:
            raise VerificationError(
                f"joint plan: its bound for any use of the links is of kind {self.bound.kind!r}"
            )

    def check_topology(self, topology: Topology) -> None:
        """Raise PlanMismatchError unless the joint plan is for `topology`, rank order included."""
        for group in self.groups:
            group.plan.check_topology(topology)

    def describe(self) -> str:
        """Format the joint plan as topo-synth's table."""
        from .describe import describe_joint  # it is made of plans

        return describe_joint(self)

    def to_json(self) -> dict[str, Any]:
        """Return the joint plan as a JSON object, with `hash` over all other fields."""
        body = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.topology.fingerprint,
            "helpers": list(self.helpers),
            "bound": self.bound.to_json(),
            "bound_one_way": self.bound_one_way.to_json(),
            "groups": [_group_to_json(group) for group in self.groups],
            "topology": self.topology.to_json(),
        }
        return {**body, "hash": hash_of(_without_plans(body))}

    @cached_property
    def hash(self) -> str:
        """The SHA-256 of the joint plan's content, in hex."""
        return str(self.to_json()["hash"])

    def save(self, path: str | Path, *, overwrite: bool = False, follow_links: bool = True) -> None:
        """Verify the joint plan, then write its file; raise VerificationError if it is wrong.

        Raise InputError if the file exists and `overwrite` is off; with `follow_links=False` also
        if `path` is a symbolic link.
        """
        self.verify()
        write_whole(path, dumps(self.to_json()), overwrite=overwrite, follow_links=follow_links)

    @classmethod
    def load(cls, path: str | Path) -> JointPlan:
        """Read and verify the file of a joint plan.

        Raise InputError if there is no such file or it is not a joint plan, VerificationError if
        its schedules, shares or bounds do not hold.
        """
        return cls.loads(read_text(Path(path)), str(path))

    @classmethod
    def loads(cls, text: str, where: str = "joint plan") -> JointPlan:
        """Read and verify a joint plan from the text of its file, which `where` names in errors.

        Raise InputError or VerificationError as `load` does.
        """
        data = parse(text, where, FORMAT, (VERSION,))
        body = {key: value for key, value in data.items() if key != "hash"}
        file = read_as(data, JointPlanFile, where)
        check_hash(_without_plans(body), data.get("hash"), where)
        try:
            plan = cls._read(file, where)
            plan.verify()
        except TopoplanError as error:
            raise VerificationError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None
        return plan

    @classmethod
    def _read(cls, file: JointPlanFile, where: str) -> JointPlan:
        topology = Topology.from_json(file.topology, f"{where}: topology")
        groups = []
        for number, fields in enumerate(file.groups):
            place = f"{where}: groups[{number}]"
            plan = Plan.from_json({**fields.plan, "topology": file.topology}, f"{place}.plan")
            call = JointCall(fields.kind, plan.collective, fields.size_bytes, fields.weight)
            shares: dict[DirectedLink, Fraction] = {}
            for a, b, share in fields.shares:
                if (a, b) in shares:
                    raise VerificationError(
                        f"{place}.shares: the link {a!r} -> {b!r} is there twice"
                    )
                shares[a, b] = share
            groups.append(GroupPlan(call, replace(plan, topology=topology), shares))
        return cls(
            topology,
            tuple(groups),
            tuple(file.helpers),
            JointBound.from_fields(file.bound),
            JointBound.from_fields(file.bound_one_way),
        )


def share_out(topology: Topology, shares: Mapping[DirectedLink, Fraction]) -> Topology:
    """Return a topology with each link's bandwidth times its share; other links are dropped."""
    links = (
        replace(link, bandwidth_GBps=link.bandwidth_GBps * shares[link.src, link.dst])
        for link in topology.links
        if (link.src, link.dst) in shares
    )
    return replace(topology, links=tuple(links))


def _group_to_json(group: GroupPlan) -> dict[str, Any]:
    call, plan = group.call, group.plan.to_json()
    return {
        "kind": call.kind,
        "size_bytes": call.size_bytes,
        "weight": fraction_to_json(call.weight),
        "shares": [[a, b, fraction_to_json(share)] for (a, b), share in group.shares.items()],
        "plan": {key: value for key, value in plan.items() if key != "topology"},
    }


def _without_plans(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a file with the hash of each plan in place of the plan."""
    groups = [{**group, "plan": group["plan"].get("hash")} for group in body["groups"]]
    return {**body, "groups": groups}
