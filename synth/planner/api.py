"""The top-level planning functions, which take names as well as objects.

An example is `topoplan.synthesize("allreduce", "dgx1")`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from ...extras import ADDITIONS, CONSTRAINTS, Names
from ...topo.derived.stripes import list_forms
from ...topo.errors import InputError, VerificationError
from ...topo.graph import Topology
from ...topo.loader.resolve import load, load_for_planning
from ..addition import Addition
from ..groups.ranks import Helpers, choose_helpers, group_on
from ..ir.collective import Collective, CollectiveName, collective_on
from ..ir.schedule import Schedule
from ..numeric.effort import USUAL_LIMIT_S, Effort
from ..plan import Plan
from ..request import Promise, Request, TreeLimits
from ..sizes import count_bytes
from ..strategy_names import AUTO
from ..verify import verify as verify_schedule
from .synthesize import synthesize as run_planner

log = logging.getLogger("topoplan")


def synthesize(  # noqa: PLR0913 (the options of planning)
    collective: CollectiveName | Collective,
    topology: str | PathLike[str] | Topology,
    strategy: str = AUTO,
    *,
    size: int | str | None = None,
    root: int | None = None,
    group: Iterable[int] | None = None,
    helpers: Helpers = "rest",
    limits: TreeLimits | None = None,
    reproducible: bool = False,
    constraints: Mapping[str, Any] | None = None,
    thorough: bool = False,
    spare: str | None = None,
    time_limit_s: float = USUAL_LIMIT_S,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Return the verified plan for a collective on a machine.

    For each size it has the schedule predicted to be the fastest. `collective` and `topology` are
    names, as for topo-synth (the topology may be anything that `topoplan.load` takes), or objects.
    `strategy` is "auto", a built-in strategy, one of your own (see `strategy`), or "file:" and the
    path of an XML file of MSCCL, whose schedule the plan then has.

    `size`, in bytes or as text ("64M"), requests the schedule that is the fastest at this size
    alone: the plan uses it for all sizes. `root` is the root of broadcast, reduce, gather and
    scatter (default: rank 0, or the lowest of the group). `limits` restrict trees. `reproducible`:
    an element's bits depend neither on the size of the buffer nor on its place in it. `constraints`
    are what else all schedules keep, by the names of topo-synth's options ({"concurrent":
    "gpu=1"}). `thorough`: auto also tries strategies that it expects to lose. `spare="links"`: the
    plan also has plans for the loss of each link and NIC, for ranks that go on after a fault.
    `time_limit_s` stops the search, and a warning is logged if it did; with more than a minute,
    searches do more work. `progress` is called with a line of text from time to time.

    `group` lists the ranks that take part, if not all do, and `helpers` the others that may relay,
    copy and add for them: "rest" (all others), "none", or ranks. All ranks are numbered as on the
    whole machine. With `reproducible` or `constraints`, a plan uses no helpers.

    Raise InputError if names or options are wrong, InfeasibleError if there is no such schedule
    (with the reason), TimeLimitError if none was found in time.
    """
    check_time_limit(time_limit_s)
    if spare not in (None, "links"):
        raise InputError(f"spare={spare!r:.40}: expected 'links', or None")
    addition: Addition | None = None if spare is None else Names(ADDITIONS).find("spare")
    promises = _list_promises(constraints or {}, spare)
    began = time.monotonic()
    size_bytes = None if size is None else count_bytes(size)
    machine, router = load_for_planning(topology)
    wanted = find_collective(collective, machine, root, group)
    result = run_planner(
        Request(
            wanted,
            machine,
            Effort(time_limit_s),
            progress,
            limits=limits or TreeLimits(),
            router=router,
            strategy=strategy,
            thorough=thorough,
            reproducible=reproducible,
            helpers=choose_helpers(helpers, wanted, machine, reproducible=reproducible),
            promises=promises,
        )
    )
    warn_if_cut_short(wanted, machine, time_limit_s, result.cut_short)
    plan = result.plan
    if addition is not None:
        left_s = time_limit_s - (time.monotonic() - began)
        plan = addition.add(plan, left_s, progress or (lambda text: None))
    if size_bytes is None:
        return plan
    entry = replace(plan.entry_for(size_bytes), min_bytes=0, max_bytes=None)
    return replace(plan, entries=(entry,), alternatives=())


def _list_promises(constraints: Mapping[str, Any], spare: str | None) -> tuple[Promise, ...]:
    """Return what the constraints ask for; raise InputError if one is unknown or wrong."""
    if constraints and spare is not None:
        raise InputError(f"spare={spare!r}: spares keep no constraints; leave one of them out")
    names = Names(CONSTRAINTS)
    return tuple(names.find(name)(value) for name, value in constraints.items())


def check_time_limit(time_limit_s: float) -> None:
    """Raise InputError unless a time limit is a number of seconds above 0."""
    if not isinstance(time_limit_s, (int, float)) or not time_limit_s > 0:
        raise InputError(f"time_limit_s is {time_limit_s!r}; expected seconds above 0")


def warn_if_cut_short(
    collective: Collective, topology: Topology, time_limit_s: float, cut_short: Sequence[str]
) -> None:
    """Log a warning that names the searches that the time limit (in seconds) stopped, if any.

    `cut_short` are their names; `collective` and `topology` say what was planned.
    """
    if cut_short:
        log.warning(
            "%s on %s: the time limit of %g s cut the search short (%s); the gap may be loose",
            collective.name, topology.name, time_limit_s, ", ".join(cut_short),
        )  # fmt: skip


def verify(schedule: Schedule, topology: str | PathLike[str] | Topology) -> None:
    """Replay a schedule and raise VerificationError unless it is correct.

    It is correct if every receiver ends with every contribution exactly once, routes exist, and no
    link carries more in a step than its bandwidth allows. The replay does not depend on how the
    schedule was made. `Plan.verify` does this for all schedules of a plan, and checks its bounds.
    Raise InputError for what is no Schedule.
    """
    if not isinstance(schedule, Schedule):
        raise InputError(
            f"verify: expected a Schedule, got {type(schedule).__name__}; a Plan has verify() of "
            "its own"
        )
    *others, planned = list_forms(topology if isinstance(topology, Topology) else load(topology))
    for form in others:
        try:
            verify_schedule(schedule.uncut, form)
        except VerificationError:
            continue  # it may be for a machine with equal parallel switches merged
        return
    verify_schedule(schedule.uncut, planned)


def find_collective(
    collective: str | Collective,
    topology: Topology,
    root: int | None,
    group: Iterable[int] | None = None,
) -> Collective:
    """Return the collective, given by name or as an object, over a topology's ranks.

    `root` and `group` (the ranks that take part, None: all) apply to a name; raise InputError if
    they contradict an object, or the collective does not fit.
    """
    if not isinstance(collective, Collective):
        if group is not None:
            return group_on(collective, topology, group, root)
        return collective_on(collective, topology, root)
    if root is not None and root != collective.root:
        raise InputError(
            f"root={root}, but the collective has root {collective.root}; leave one of them out"
        )
    if group is not None and list(collective.members) != sorted(group):
        raise InputError(
            f"group: the collective is over {collective.spelled_ranks} already; leave it out"
        )
    if not collective.has_all_gpus:
        return group_on(collective.name, topology, collective.members, collective.root)
    if collective.ranks != len(topology.ranks):
        raise InputError(
            f"the collective is over {collective.ranks} ranks, topology {topology.name!r} has "
            f"{len(topology.ranks)} GPUs; they must be as many"
        )
    return collective_on(collective.name, topology, collective.root)


def describe(thing: Any, size: int | str = "1G") -> str:
    """Return `thing.describe()`, the text that describes a topology, plan, schedule or choice.

    For a plan, the text includes the prediction for `size` (bytes, or text such as "64M"). Kept for
    users of version 0.1.
    """
    return str(thing.describe(size) if isinstance(thing, Plan) else thing.describe())
