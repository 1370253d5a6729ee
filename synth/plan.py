"""A plan: the schedule to use for each range of sizes, with its topology, bounds and hash.

`bound` holds for any use of the links, `bound_one_way` for schedules that take the hardware's route
between two GPUs, as all data sent does. Times and gaps are of schedules on those routes. In files
written before `bound_one_way` existed, `bound` serves as both, since it holds for single paths as
well.

Extras, the optional features that extras.py at the root lists, add sections to plans, each a field
of the plan's file (section.py): for example spares, the plans for the loss of links. A section may
promise what all schedules of the plan keep, such as one bracketing (which partial sums an addition
forms, as in (0+1)+(2+3), and so the bits of the result). A runner is what carries out schedules at
run time (runtime/runners). Chunks of a schedule may be cut into segments, equal parts that follow
each other through the steps.

A plan file is self-contained: it includes its topology, so that any reader can replay it. Every
schedule, and the certificate of each bound, is verified before a plan is saved and again after one
is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import UNSET

from ..topo.derived.degrade import keep_gpus
from ..topo.derived.lost_links import Link, Pair
from ..topo.derived.stripes import list_forms
from ..topo.errors import InputError, PlanMismatchError, TopoplanError, VerificationError
from ..topo.files import write_whole
from ..topo.graph import Topology
from ..topo.grouping import group_by_key
from ..topo.hardware_rule import HARDWARE
from ..topo.notebook import draw, show
from ..topo.routes import Router
from ..topo.schema import read_as
from .bounds.certificate import Bound, check_bound
from .cost.affine import Cost, bandwidth_s_per_GB, costs_between_gpus
from .cost.host_costs import host_of
from .cost.segmentation import list_omitted, reroute_unless_in_network, time_us
from .describe import describe_plan
from .ir.addition_order import is_uniform
from .ir.collective import COLLECTIVES, Collective, spell_ranks
from .ir.columns import MAX_EXPLICIT_RANKS
from .ir.demands import Demands
from .ir.schedule import MAX_SEGMENTS, Schedule
from .ir.schedule_text import join_lines
from .plan_file import (
    FORMAT,
    VERSIONS,
    EntryFields,
    PlanFile,
    check_columns,
    check_counts,
)
from .plan_text import check_hash, dumps, hash_of, parse, read_text
from .remark import list_remarks
from .section import PlanSection, list_missing, read_sections, split_fields
from .sizes import count_bytes
from .verify import verify

log = logging.getLogger("topoplan")

# The order in which the runtime adds what arrives (addition_order.py), for readers of the file.
_REDUCTION_ORDER = (
    "step by step, within a step from the lowest rank to the highest, the rank's own value in its "
    "place"
)


@dataclass(frozen=True)
class Entry:
    """The schedule for buffers of at least `min_bytes` and less than `max_bytes`.

    If `max_bytes` is None, the range has no upper end.
    """

    min_bytes: int
    max_bytes: int | None
    schedule: Schedule

    def __post_init__(self) -> None:
        if not 1 <= self.schedule.segments <= MAX_SEGMENTS:
            raise InputError(
                f"plan: an entry has {self.schedule.segments} segments; expected from 1 to "
                f"{MAX_SEGMENTS}"
            )

    def covers(self, size_bytes: int) -> bool:
        """Return whether a buffer of that size is in this entry's range."""
        return self.min_bytes <= size_bytes and (
            self.max_bytes is None or size_bytes < self.max_bytes
        )


@dataclass(frozen=True)
class Spare:
    """What a plan has for the case that the links `lost` are, by their devices' ids.

    Pairs of GPUs whose routes use such a link do not reach each other then. `entries`, bounds and
    `extensions` are those of a plan for what is left; see Plan.find_spare.
    """

    lost: tuple[Link, ...]
    entries: tuple[Entry, ...]
    bound: Bound
    bound_one_way: Bound
    extensions: tuple[PlanSection, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The schedules for one collective on one topology, by ranges of sizes, with bounds and a hash.

    Made by `synthesize`, or read by `load`. Entries cover all sizes from 0 up, in order and without
    gaps. `bound` holds for any use of the links, `bound_one_way` for schedules that take the
    hardware's route between two GPUs, as all data sent does. `alternatives` are other schedules
    that may win if sending costs the hosts more than the topology says: the runtime chooses among
    all. `router` gives the routes on which its schedules are sent. `extensions` are its sections,
    which extras (optional features) add, in the order in which its file has them.

    If only some of the GPUs are members of the collective, `helpers` are the other ranks that may
    relay, copy and add for them, and `bound` and `bound_one_way` hold with their help. Two more
    single-path bounds are then there for comparison: `bound_alone` for the members without help,
    None if they cannot reach each other, and `bound_with_helpers`, which differs from
    `bound_one_way` only if the plan may use no helpers: it is for help by all others. By default
    all others may help.
    """

    topology: Topology
    collective: Collective
    entries: tuple[Entry, ...]
    bound: Bound
    bound_one_way: Bound
    alternatives: tuple[Schedule, ...] = ()
    router: Router = field(default=HARDWARE, compare=False, repr=False)
    helpers: tuple[int, ...] | None = None
    bound_alone: Bound | None = None
    bound_with_helpers: Bound | None = None
    extensions: tuple[PlanSection, ...] = ()

    def __post_init__(self) -> None:
        # A plan that was read from a file, or moved to another topology, keeps its routing rule.
        object.__setattr__(self, "router", self.router.on(self.topology))
        self._settle_helpers()
        edge: int | None = 0
        for entry in self.entries:
            is_empty = entry.max_bytes is not None and entry.max_bytes <= entry.min_bytes
            if entry.min_bytes != edge or is_empty:
                raise InputError(
                    f"plan: the ranges of sizes have a gap or overlap at {entry.min_bytes} bytes"
                )
            edge = entry.max_bytes
        if edge is not None:
            raise InputError(f"plan: no schedule for buffers of {edge} bytes and more")
        for schedule in self.schedules:
            if schedule.collective != self.collective:
                raise InputError(
                    f"plan: for {self.collective}, but holds a schedule for {schedule.collective}"
                )
            others = set(schedule.helpers).difference(self.helpers or ())
            if others:
                raise InputError(
                    f"plan: rank {min(others)} helps in its {schedule.label} schedule; the plan "
                    f"may use {'the helpers ' if self.helpers else 'no helpers'}"
                    f"{spell_ranks(self.helpers or ())}"
                )

    def _settle_helpers(self) -> None:
        """Set the helpers and the bounds with and without help that are not given.

        Raise InputError unless the helpers are different ranks of the topology, and no members.
        """
        is_group, gpus = not self.collective.has_all_gpus, len(self.topology.ranks)
        others = [rank for rank in range(gpus) if rank not in self.collective.members]
        if self.helpers is None:
            object.__setattr__(self, "helpers", tuple(others))
        assert self.helpers is not None
        if list(self.helpers) != [rank for rank in others if rank in self.helpers]:
            raise InputError(
                f"plan: helpers: {spell_ranks(self.helpers)}; expected ranks below {gpus}, "
                "ascending, that are not members"
            )
        if is_group and not self.helpers:
            object.__setattr__(self, "bound_alone", self.bound_one_way)
        elif is_group:
            object.__setattr__(self, "bound_with_helpers", self.bound_one_way)

    def find_extension(self, name: str) -> Any:
        """Return the plan's section by the name of its field in the file, None if it has none."""
        return next((section for section in self.extensions if section.name == name), None)

    @property
    def bracketing(self) -> str | None:
        """The bracketing in which all schedules add every element; None if they promise none."""
        section = self.find_extension("reproducible")
        return None if section is None else str(section.bracketing)

    @property
    def runner(self) -> str | None:
        """The name of the runner that alone keeps the plan's promise; None: any runner does."""
        return next((each.runner for each in self.extensions if each.runner is not None), None)

    @property
    def spares(self) -> tuple[Spare, ...]:
        """The plans for the loss of links."""
        section = self.find_extension("spares")
        return () if section is None else tuple(section.spares)

    @property
    def participants(self) -> tuple[int, ...]:
        """The ranks that may take part, ascending: the members, and the helpers it may use."""
        return tuple(sorted((*self.collective.members, *(self.helpers or ()))))

    @property
    def used_helpers(self) -> list[int]:
        """The helpers that its schedules use, ascending."""
        return sorted({helper for schedule in self.schedules for helper in schedule.helpers})

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules of the entries, then the alternatives."""
        return [*(entry.schedule for entry in self.entries), *self.alternatives]

    def entry_for(self, size_bytes: int) -> Entry:
        """Return the entry whose range covers `size_bytes`."""
        return next(entry for entry in self.entries if entry.covers(size_bytes))

    @cached_property
    def _figures(self) -> dict[Entry, tuple[Cost, Fraction]]:
        """The cost of every entry, and its seconds per GB if only bandwidth counted."""
        # Schedules that differ only in segments have the same link loads, which are summed once.
        by_base = group_by_key(
            (replace(entry.schedule, segments=1), entry) for entry in self.entries
        )
        figures: dict[Entry, tuple[Cost, Fraction]] = {}
        for given, entries in by_base.items():
            base = reroute_unless_in_network(given, self.router)
            piped = bandwidth_s_per_GB(replace(base, segments=2, stepwise=False), self.topology)
            alone = bandwidth_s_per_GB(base, self.topology)
            segments = [entry.schedule.segments for entry in entries]
            for entry, m, cost in zip(
                entries, segments, costs_between_gpus(base, self.topology, segments), strict=True
            ):
                waits_us = self._find_waits_us(entry)
                cost = replace(cost, alpha_us=cost.alpha_us + waits_us) if waits_us else cost
                figures[entry] = cost, piped if m > 1 and not base.stepwise else alone
        return figures

    def _find_waits_us(self, entry: Entry) -> Fraction:
        """Return the microseconds that an entry's schedule waits to keep the plan's promises."""
        waits = (x.find_waits_us(entry.schedule, self.topology) for x in self.extensions)
        return sum(waits, Fraction(0))

    def cost_of(self, entry: Entry) -> Cost:
        """Return the affine cost of an entry's schedule: fixed time, and time per GB of buffer.

        Hosts' costs that calibration measured are not in it; see `time_s`.
        """
        return self._figures[entry][0]

    def time_s(self, entry: Entry, size_bytes: int) -> float:
        """Return the predicted time in seconds of an entry's schedule for a buffer of `size_bytes`.

        If the topology is calibrated, the messages are simulated with its host costs; otherwise the
        time is that of `cost_of`.
        """
        host = host_of(self.topology)
        if host is None:
            return self.cost_of(entry).time_s(size_bytes)
        played_us = time_us(entry.schedule, self.topology, host, size_bytes)
        return (played_us + float(self._find_waits_us(entry))) * 1e-6

    def limit_GBps(self, entry: Entry) -> Fraction | None:
        """Return the algbw in GB/s that an entry approaches at large sizes, in many segments.

        None if its schedule uses no links.
        """
        needed = self._figures[entry][1]
        return 1 / needed if needed else None

    def gap_of(self, entry: Entry) -> Fraction:
        """Return an entry's relative gap to the single-path bound; 0 is at the bound.

        The gap is 1 - algbw / bound, with the bandwidth-only algbw. It follows from the exact link
        loads on the routes that data takes.
        """
        limit_GBps = self.limit_GBps(entry)
        return 1 - limit_GBps * self.bound_one_way.s_per_GB if limit_GBps else Fraction(0)

    def gap_any_way_of(self, entry: Entry) -> Fraction:
        """Return the same gap as `gap_of`, but to the bound for any use of the links."""
        limit_GBps = self.limit_GBps(entry)
        return 1 - limit_GBps * self.bound.s_per_GB if limit_GBps else Fraction(0)

    def __repr__(self) -> str:
        labels = ", ".join(dict.fromkeys(entry.schedule.strategy for entry in self.entries))
        of = f"{self.collective.name} on {self.topology.name}: {self.collective.spelled_ranks}"
        rates = {
            "": self.bound_one_way if self.collective.has_all_gpus else None,
            " with help": self.bound_with_helpers,
            " without": self.bound_alone,
        }
        limits = (f"{float(b.algbw_GBps):.4g} GB/s{how}" for how, b in rates.items() if b)
        return f"<Plan {of}, {labels}, at most {', '.join(limits)}>"

    def _repr_svg_(self) -> str | None:
        return draw(self)

    def _repr_html_(self) -> str | None:
        return show(self)

    def describe(self, size: int | str = "1G") -> str:
        """Format the plan as topo-synth's table, with the prediction for one size.

        `size` is in bytes, or text such as "64M".
        """
        size_bytes = count_bytes(size)
        remarks = join_lines(remark.line for remark in list_remarks(self, size_bytes).values())
        return "\n".join(filter(None, (describe_plan(self, size_bytes), remarks)))

    def verify(self) -> None:
        """Replay every schedule on the topology and redo the bounds' arithmetic.

        Raise VerificationError if any of them fails.
        """
        for schedule in dict.fromkeys(schedule.uncut for schedule in self.schedules):
            verify(schedule, self.topology)
            if omitted := list_omitted(schedule, self.router):
                src, dst = omitted[0]
                raise VerificationError(
                    f"the {schedule.label} schedule sends from rank {src} to rank {dst}, which do "
                    "not reach each other"
                )
        for section in self.extensions:
            section.verify(self)
        self._check_bounds()

    def _check_bounds(self) -> None:
        """Redo the arithmetic of each bound, on the machine of the GPUs that may take part."""
        everyone = tuple(range(len(self.topology.ranks)))
        members = tuple(self.collective.members)
        claims = [
            (self.bound, self.participants, None),
            (self.bound_one_way, self.participants, self.router),
            (self.bound_alone, members, self.router),
            (self.bound_with_helpers, everyone if not self.helpers else self.participants,
             self.router),
        ]  # fmt: skip
        checked: list[tuple[Bound, tuple[int, ...]]] = []
        for bound, ranks, router in claims:
            if bound is None or (bound, ranks) in checked:
                continue
            checked.append((bound, ranks))
            collective, machine = self.collective, self.topology
            if len(ranks) < len(everyone):
                collective, machine = collective.among(ranks), keep_gpus(machine, ranks)
            check_bound(bound, collective, machine, None if router is None else router.on(machine))

    def find_spare(self, lost: Sequence[Link], unreached: Collection[Pair]) -> Plan | None:
        """Return the plan for what is left if links are lost, None without a spare for that.

        `unreached` are the pairs of ranks that do not reach each other any more. It is not verified
        yet.
        """
        section = self.find_extension("spares")
        found: Plan | None = None if section is None else section.find(self, lost, unreached)
        return found

    def use_spare(self, spare: Spare) -> Plan:
        """Return the plan that one of its spares is, on the topology without the lost links.

        Raise InputError if the plan has no spares.
        """
        section = self.find_extension("spares")
        if section is None:
            raise InputError("the plan has no spares; synthesize one with spare='links'")
        used: Plan = section.use(self, spare)
        return used

    def check_topology(self, topology: Topology) -> None:
        """Raise PlanMismatchError unless the plan is for `topology`, rank order included.

        Its equal parallel switches may be merged in the plan or not.
        """
        forms = list_forms(topology)
        same = [form for form in forms if form.fingerprint == self.topology.fingerprint]
        if not same:
            topology = forms[-1]
            raise PlanMismatchError(
                f"the plan is for topology {self.topology.name!r} (fingerprint "
                f"{self.topology.fingerprint}), not for {topology.name!r} (fingerprint "
                f"{topology.fingerprint}); synthesize one for it"
            )
        try:
            replace(self, topology=same[0]).verify()
        except VerificationError as error:
            raise PlanMismatchError(
                f"the plan is for a machine like {topology.name!r}, but with its GPUs or devices "
                f"in another order or under other names ({error}); synthesize one for it"
            ) from None

    def check_same_bits(self) -> None:
        """Raise InputError unless all ranks end with the same bits.

        They do if every schedule adds in one order on all ranks.
        """
        for schedule in self.schedules:
            if not is_uniform(schedule):
                raise InputError(
                    f"the plan's {schedule.label} schedule adds in different orders on different "
                    "ranks, so replicas would drift apart; synthesize without it"
                )

    def check_one_bracketing(self) -> None:
        """Raise InputError unless all schedules add every element in one bracketing.

        An element's bits then depend neither on its place in the buffer nor on the buffer's size.
        """
        if self.collective.reduces and self.bracketing is None:
            raise InputError(
                f"the plan for {self.collective.name} is not reproducible: its schedules add in "
                "different bracketings; synthesize one with topo-synth or "
                "synthesize(reproducible=True)"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object, with `hash` over all other fields."""
        schedules: dict[Schedule, int] = {}
        entries = entries_to_json(self.entries, schedules)
        alternatives = [schedules.setdefault(s, len(schedules)) for s in self.alternatives]
        collective = self.collective
        body = {
            "format": FORMAT,
            "version": self._find_version(is_compact=collective.ranks > MAX_EXPLICIT_RANKS),
            "fingerprint": self.topology.fingerprint,
            "collective": collective.name,
            "ranks": collective.ranks,
            **({} if collective.has_all_gpus else {"members": list(collective.members)}),
            **({"demands": collective.to_rows()} if isinstance(collective, Demands) else {}),
            **({} if collective.has_all_gpus else {"helpers": list(self.helpers or ())}),
            "root": collective.root,
            "reduction_order": _REDUCTION_ORDER,
            "dtypes": "any that the backend can move and add",
            "bound": self.bound.to_json(),
            "bound_one_way": self.bound_one_way.to_json(),
            **self._group_bounds_json(),
            "entries": entries,
            "alternatives": alternatives,
            **{section.name: section.to_json(schedules) for section in self.extensions},
            "schedules": [schedule.to_json() for schedule in schedules],
            "topology": self.topology.to_json(),
        }
        return {**body, "hash": hash_of(body)}

    def _group_bounds_json(self) -> dict[str, Any]:
        """Return the bounds of a group with and without help as fields of the plan's file."""
        if self.collective.has_all_gpus:
            return {}
        alone, helped = self.bound_alone, self.bound_with_helpers
        out: dict[str, Any] = {"bound_alone": None if alone is None else alone.to_json()}
        if helped is not None and not self.helpers:
            out["bound_with_helpers"] = helped.to_json()
        return out

    def _find_version(self, *, is_compact: bool) -> int:
        """Return the lowest version of plan files for it, with schedules in columns or in rows."""
        is_plain = self.collective.has_all_gpus and not isinstance(self.collective, Demands)
        own = VERSIONS[is_compact or not is_plain]
        return max([own, *(section.version for section in self.extensions)])

    @cached_property
    def hash(self) -> str:
        """The SHA-256 of the plan's content, in hex."""
        return str(self.to_json()["hash"])

    def save(self, path: str | Path, *, overwrite: bool = False, follow_links: bool = True) -> None:
        """Verify the plan with all of its sections, then write the complete file.

        Raise InputError if the file exists and `overwrite` is off; with `follow_links=False`, for
        cached plans, also if `path` is a symbolic link.
        """
        self.verify()
        for section in self.extensions:
            section.verify_rest(self)
        write_whole(path, dumps(self.to_json()), overwrite=overwrite, follow_links=follow_links)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read and verify a plan file. Whoever uses a spare verifies it before.

        Sections of extras that are not installed are left out, and a warning is logged.

        Raise InputError if there is no such file or it is not a plan, VerificationError if its
        schedules or bounds do not hold.
        """
        return cls.loads(read_text(Path(path)), str(path))

    @classmethod
    def loads(cls, text: str, where: str = "plan") -> Plan:
        """Read and verify a plan from the text of its file; `where` names the text in errors.

        Errors are those of `load`.
        """
        return cls.from_json(parse(text, where, FORMAT, VERSIONS), where)

    @classmethod
    def from_json(cls, data: dict[str, Any], where: str = "plan") -> Plan:
        """Read and verify the object that `to_json` returns; errors are those of `load`."""
        check_counts(data, where)
        body = {key: value for key, value in data.items() if key != "hash"}
        check_hash(body, data.get("hash"), where)
        try:
            plan = cls._read(body, where)
            plan.verify()
        except TopoplanError as error:
            raise VerificationError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None
        return plan

    @classmethod
    def _read(cls, data: dict[str, Any], where: str) -> Plan:
        own, added = split_fields(data)
        file = read_as(own, PlanFile, where)
        topology = Topology.from_json(data["topology"], f"{where}: topology")
        if topology.fingerprint != file.fingerprint:
            raise VerificationError(
                f"{where}: the plan says it is for fingerprint {file.fingerprint}, its topology "
                f"has {topology.fingerprint}"
            )
        check_columns(file.schedules, where)
        collective = _read_collective(file, where)
        demands = collective if isinstance(collective, Demands) else None
        schedules = [
            Schedule.from_fields(s, f"{where}: schedules[{i}]", demands)
            for i, s in enumerate(file.schedules)
        ]
        for i, schedule in enumerate(schedules):
            if schedule.segments != 1 or schedule.stepwise:
                raise VerificationError(
                    f"{where}: schedules[{i}]: it is cut into segments; only entries say how"
                )
        plan = cls(
            topology=topology,
            collective=collective,
            entries=read_entries(file.entries, schedules, where),
            bound=Bound.from_fields(file.bound),
            bound_one_way=Bound.from_fields(
                file.bound if file.bound_one_way is UNSET else file.bound_one_way
            ),
            alternatives=tuple(_pick(schedules, number, where) for number in file.alternatives),
            helpers=None if file.helpers is UNSET else tuple(file.helpers),
            bound_alone=Bound.from_fields(file.bound_alone) if file.bound_alone else None,
            bound_with_helpers=(
                Bound.from_fields(file.bound_with_helpers) if file.bound_with_helpers else None
            ),
            extensions=read_sections(added, schedules, where),
        )
        # Files of version 1 hold rows for any number of ranks.
        compact = any(fields.columns is not UNSET for fields in file.schedules)
        version = plan._find_version(is_compact=compact)
        if missing := list_missing(added):
            log.warning("%s: read without the field %s", where, "; ".join(missing))
        elif file.version != version:
            raise VerificationError(
                f"{where}: plan version {file.version} for {plan.collective}; expected version "
                f"{version}"
            )
        return plan


def entries_to_json(
    entries: Sequence[Entry], schedules: dict[Schedule, int]
) -> list[dict[str, Any]]:
    """Return entries as JSON, in which each names its schedule by its number in the file.

    `schedules` maps the file's schedules, in one segment, to their numbers; those that are new are
    added.
    """
    return [
        {
            "min_bytes": entry.min_bytes,
            "max_bytes": entry.max_bytes,
            "schedule": schedules.setdefault(entry.schedule.uncut, len(schedules)),
            "segments": entry.schedule.segments,
            **({"stepwise": True} if entry.schedule.stepwise else {}),
        }
        for entry in entries
    ]


def read_entries(
    rows: Sequence[EntryFields], schedules: Sequence[Schedule], where: str
) -> tuple[Entry, ...]:
    """Return the entries of a file's rows, which name its `schedules` by number.

    Raise VerificationError if there is no such schedule.
    """
    return tuple(
        Entry(
            row.min_bytes,
            row.max_bytes,
            replace(
                _pick(schedules, row.schedule, where),
                segments=row.segments,
                stepwise=row.stepwise,
            ),
        )
        for row in rows
    )


def _pick(schedules: Sequence[Schedule], number: int, where: str) -> Schedule:
    if number >= len(schedules):
        raise VerificationError(
            f"{where}: an entry names schedule {number}; {len(schedules)} are listed"
        )
    return schedules[number]


def _read_collective(file: PlanFile, where: str) -> Collective:
    """Return the collective of a plan's file, with the pieces of demands."""
    if (file.demands is not UNSET) != (file.collective not in COLLECTIVES):
        missing = file.demands is UNSET
        raise InputError(
            f"{where}: {file.collective} with{'out' * missing} demands; expected "
            f"{'its pieces' if missing else 'none'}"
        )
    if file.demands is UNSET:
        return Collective(file.collective, file.ranks, file.root, file.members)
    return Demands.from_rows(
        file.demands, file.collective, file.members, file.ranks, f"{where}: demands"
    )
