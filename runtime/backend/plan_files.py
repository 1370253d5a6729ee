"""Plans in files: those that the user named, and those cached by an earlier start."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...extras import PLANS, Names
from ...synth.cost.host_costs import FIELD as HOST
from ...synth.demands.demands import Demands
from ...synth.ir.collective import Collective
from ...synth.plan import Plan
from ...synth.plan_file import FORMAT, HEAD_BYTES, MAX_PLAN_BYTES, PlanHead, find_format
from ...synth.plan_text import read_text
from ...synth.strategy_names import DECORATED
from ...topo.errors import InputError, PlanMismatchError, TopoplanError
from ...topo.files import read_file, read_start
from ...topo.graph import Topology
from ...topo.routes import HARDWARE, Router
from ...topo.schema import CONVERTING
from ...topo.version import VERSION
from ..cache import warn_without_cache
from .plan_sets import PlanSet, PlanSetFormat

if TYPE_CHECKING:
    from ...synth.planner.apart import FoundPlan
    from ...synth.planner.whole import Synthesis

log = logging.getLogger("topoplan")


@dataclass(frozen=True)
class PlanEntry:
    """A plan, or its file, with its collective, number of ranks, members if listed, and root.

    In a file of several plans, which has another `form` than FORMAT, `place` is that of the plan.
    """

    collective: str
    ranks: int
    members: tuple[int, ...]
    root: int | None
    plan: Plan | Path
    form: str = FORMAT
    place: int = 0


class PlanFiles:
    """The plans that the user named.

    A file is read in full and verified only when `find` returns its plan.
    """

    def __init__(self, plans: Sequence[str | Path | Plan]) -> None:
        self.entries = [entry for plan in plans for entry in _list_plans(plan)]
        self._sets: dict[Path, PlanSet] = {}

    def find(self, wanted: Collective, *, strict: bool, ranks: Sequence[int] = ()) -> Plan | None:
        """Return the plan for a collective, or None if there is none.

        A collective of all ranks of a group, which have the numbers `ranks` in the launch, may also
        have a plan for these GPUs of a whole machine, if it needs no helpers: it has precedence.
        Raise PlanMismatchError, if `strict`, when all plans for the collective are for other
        numbers of ranks, InputError if two plans fit, VerificationError if the plan is wrong.
        """
        own = self.find_among(wanted, ranks) if ranks and wanted.has_all_gpus else None
        if own is not None:
            return own
        members = _list_members(wanted)
        entries = [
            entry
            for entry in self.entries
            if entry.collective == wanted.name and entry.members == members
        ]
        fitting = [entry for entry in entries if entry.ranks == wanted.ranks]
        if entries and not fitting and strict:
            numbers = " and ".join(map(str, sorted({entry.ranks for entry in entries})))
            raise PlanMismatchError(
                f"the plan for {wanted.name} is for {numbers} ranks, the group has {wanted.ranks}; "
                "start as many ranks, or synthesize a plan for this number"
            )
        exact = [entry for entry in fitting if entry.root == wanted.root]
        # In a file of several plans some may be for the same members.
        if len({entry.plan for entry in exact}) > 1:
            names = ", ".join(str(entry.plan) for entry in exact if isinstance(entry.plan, Path))
            raise InputError(
                f"there are {len(exact)} plans for {wanted.name} over {wanted.ranks} ranks "
                f"({names}); leave one"
            )
        return self.load(exact[0]) if exact else None

    def has_members(self, gpus: Sequence[int]) -> bool:
        """Return whether a plan is for these GPUs of a whole machine."""
        return any(entry.members == tuple(gpus) for entry in self.entries)

    def find_set(self, plan: Plan) -> PlanSet | None:
        """Return the plans that share a file with one returned by `find`, None without such."""
        for plan_set in self._sets.values():
            if any(one is plan for one in plan_set.plans):
                return plan_set
        return None

    def find_among(self, wanted: Collective, ranks: Sequence[int]) -> Plan | None:
        """Return the plan for a group's GPUs of a whole machine, None if it needs helpers."""
        root = None if wanted.root is None else ranks[wanted.root]
        for entry in self.entries:
            if (entry.collective, entry.members, entry.root) == (wanted.name, tuple(ranks), root):
                plan = self.load(entry)
                if not plan.used_helpers:
                    return plan
                log.warning(
                    "%s over ranks %s: its plan has helpers, which torch's own groups lack; make "
                    "the group by topoplan.new_group, or plan without helpers",
                    wanted.name,
                    list(ranks),
                )
        return None

    def load(self, entry: PlanEntry) -> Plan:
        """Return the plan of an entry; raise VerificationError if it is wrong."""
        if isinstance(entry.plan, Plan):
            return entry.plan
        if entry.form == FORMAT:
            return Plan.load(entry.plan)
        if entry.plan not in self._sets:
            text = read_text(entry.plan)
            self._sets[entry.plan] = find_set_format(entry.form).loads(text, str(entry.plan))
        return self._sets[entry.plan].plans[entry.place]


def is_plan_file(path: Path) -> bool:
    """Return whether a file's first characters are those of a plan; the rest is not read."""
    return find_format(read_start(path, HEAD_BYTES)) is not None


def find_set_format(form: str) -> PlanSetFormat:
    """Return what reads files of several plans of a format; raise InputError if nothing does."""
    found: PlanSetFormat = Names(PLANS).find(form)
    return found


def _list_plans(plan: str | Path | Plan) -> list[PlanEntry]:
    if isinstance(plan, Plan):
        of = plan.collective
        return [PlanEntry(of.name, of.ranks, _list_members(of), of.root, plan)]
    path = Path(plan)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; expected plans written by topo-synth -o")
    if not path.is_dir():
        return _read_heads(path)
    files = filter(is_plan_file, sorted(path.glob("*.json")))
    entries = [entry for file in files for entry in _read_heads(file)]
    if not entries:
        raise InputError(
            f"{path}: there is no plan in this folder; expected .json files written by topo-synth "
            "-o"
        )
    return entries


def _read_heads(path: Path) -> list[PlanEntry]:
    """Read the collectives of a file's plan, or plans, without verifying them."""
    try:
        data = read_file(path, MAX_PLAN_BYTES + 1)
        if len(data) > MAX_PLAN_BYTES:
            raise InputError(f"{path}: larger than {MAX_PLAN_BYTES >> 20} MiB; not a plan")
        with CONVERTING:
            form = find_format(data[:HEAD_BYTES]) or FORMAT
            if form == FORMAT:
                heads = [msgspec.json.decode(data, type=PlanHead)]
            else:
                heads = find_set_format(form).read_heads(data)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError(
            f"{path}: not a plan, or damaged; expected a file written by topo-synth -o"
        ) from None
    return [
        PlanEntry(head.collective, head.ranks, tuple(head.members), head.root, path, form, place)
        for place, head in enumerate(heads)
    ]


def _list_members(collective: Collective) -> tuple[int, ...]:
    """Return the members of a collective; none if it is over all GPUs."""
    return () if collective.has_all_gpus else tuple(collective.members)


def load_or_synthesize(
    collective: Collective,
    topology: Topology,
    folder: Path | None,
    time_limit_s: float,
    *,
    reproducible: bool = False,
    router: Router = HARDWARE,
    is_stopped: Callable[[], bool] | None = None,
    helpers: Sequence[int] = (),
) -> Plan:
    """Return the plan in `folder`, verified, or else synthesize one and save it there.

    If the collective is not over all GPUs, `helpers` may help. With `is_stopped` a process of its
    own synthesizes, which is ended when that returns True. A plan whose search reached the time
    limit is not saved. A file that is damaged, or for another machine, is replaced. A folder that
    is None or cannot be used costs one warning. Raises like `synthesize`.
    """
    name = _make_file_name(collective, topology, helpers, reproducible=reproducible)
    what = f"{collective.name} over {collective.spelled_ranks}"
    loaded = None if folder is None else _load_fitting(folder / name, collective, topology)
    if loaded is not None and (loaded.bracketing is not None) == reproducible:
        log.info("%s: plan %s from %s", what, loaded.hash[:16], folder)
        return loaded
    apart: FoundPlan | None = None
    # Strategies of the script's own are known in this process alone.
    if is_stopped is not None and not DECORATED:
        from ...synth.planner.apart import synthesize_apart

        apart = synthesize_apart(
            collective,
            topology,
            time_limit_s,
            reproducible=reproducible,
            is_stopped=is_stopped,
            helpers=helpers,
        )
    result = apart or _synthesize_here(
        collective,
        helpers,
        topology,
        time_limit_s=time_limit_s,
        reproducible=reproducible,
        router=router,
    )
    log.info(
        "%s: plan %s synthesized in %.1f s",
        what,
        result.plan.hash[:16],
        result.seconds,
    )
    if result.cut_short:
        log.warning(
            "%s: search cut short by the time limit of %g s (%s); plan %s is not cached, the next "
            "start searches again",
            what,
            time_limit_s,
            ", ".join(result.cut_short),
            result.plan.hash[:16],
        )
        return result.plan
    _cache(result.plan, folder, name)
    return result.plan


def _synthesize_here(
    collective: Collective,
    helpers: Sequence[int],
    topology: Topology,
    time_limit_s: float,
    *,
    router: Router,
    reproducible: bool,
) -> "Synthesis":
    # The planner's imports take more than a second of a core, and only the first rank of the first
    # start needs them.
    from ...synth.numeric.effort import Effort
    from ...synth.planner.synthesize import synthesize
    from ...synth.request import Request

    return synthesize(
        Request(
            collective,
            topology,
            Effort(time_limit_s),
            router=router,
            reproducible=reproducible,
            helpers=tuple(helpers),
        )
    )


def _cache(plan: Plan, folder: Path | None, name: str) -> None:
    if folder is None:
        if not isinstance(plan.collective, Demands):  # plans for these are never cached
            warn_without_cache(None)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plan.save(folder / name, overwrite=True, follow_links=False)
    except (OSError, ValueError, TopoplanError) as error:
        warn_without_cache(folder, error)


def _load_fitting(path: Path, collective: Collective, topology: Topology) -> Plan | None:
    """Return the plan in a file, or None if the file is missing, damaged, or for another request.

    Another request is one for another machine or collective.
    """
    try:
        if not path.exists():
            return None
        if not path.is_file():  # reading a FIFO would wait for ever
            raise InputError(f"{path}: not a regular file")
        plan = Plan.load(path)
    except (OSError, ValueError) as error:  # this user cannot enter the folder; an impossible name
        warn_without_cache(path.parent, error)
        return None
    except TopoplanError as error:
        log.warning("%s; it is replaced", error)
        return None
    if plan.collective != collective or _encode(plan.topology) != _encode(topology):
        log.warning("%s: for another machine or collective; it is replaced", path)
        return None
    return plan


def _make_file_name(
    collective: Collective, topology: Topology, helpers: Sequence[int], *, reproducible: bool
) -> str:
    """Return a file name made of all inputs of a plan.

    It includes names and the order of ranks, which fingerprints ignore.
    """
    root = "" if collective.root is None else f"-root{collective.root}"
    inputs = _encode(topology)
    if not collective.has_all_gpus:
        inputs += f" {list(collective.members)} {list(helpers)}"
    exact = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    of_plan = f"{collective.name}-{collective.ranks}{root}{'-same-bits' if reproducible else ''}"
    return f"{of_plan}-{topology.fingerprint[:16]}-{exact}-{VERSION}.json"


def _encode(topology: Topology) -> str:
    """Return devices, links and host costs as JSON text, in their order."""
    data: dict[str, Any] = topology.to_json()
    return json.dumps([data["devices"], data["links"], data.get(HOST)], sort_keys=True, default=str)
