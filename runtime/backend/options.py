"""Read the options of the backend "topo" from `backend_options` or environment variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...extras import OPTIONS, PROCESS_GROUPS, Names
from ...synth.groups.ranks import Helpers
from ...synth.plan import Plan
from ...topo.errors import InputError
from .. import environment
from ..environment import heed_log_level, read, read_yes
from ..layers import find_layer, refuse
from ..option_names import MODES, ON_SLOWS, SAME_BITS
from ..policy import ChooseMode, Policy, make_policy
from ..ranks.links import check_transport, find_kind

if TYPE_CHECKING:
    from .scope import Scope

AUTO, OFF = "auto", "off"
_OFF_NAMES = (OFF, "stock")
Plans = str | Path | Plan | Sequence[str | Path | Plan]
"""A plan, a plan file, a folder of plan files, several plans or files, a topology to plan for,
"auto" or "off".
"""


@dataclass(frozen=True)
class BackendOptions:
    """The options of the backend, validated; `backend_options` explains and creates them.

    `plans` is what the user named or a word (auto, off); `policy` says how plans are carried out;
    `even_alltoall` is the promise of that name, `transport` the name of what sends messages.
    `scope` says what a group's plans are for, if not for the GPUs of its own ranks alone.
    `expected_splits` are the sizes promised for all_to_all_single, a matrix or this rank's row.
    """

    plans: Plans
    policy: Policy
    even_alltoall: bool = False
    transport: str = "auto"
    scope: Scope | None = None
    expected_splits: tuple[Any, ...] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        """The options that put a layer around calls (on_fault, on_slow), innermost first.

        A layer is code around a plan's calls on CPU tensors, which repeats them without a lost link
        or follows slow links.
        """
        return () if self.off else self.policy.layers

    @property
    def off(self) -> bool:
        """Whether plans are turned off, so that gloo or NCCL run everything."""
        return self.plans in _OFF_NAMES

    @property
    def _timeout(self) -> timedelta | None:
        """Always None, the process group's own timeout; DeviceMesh reads it from options."""
        return None


def backend_options(  # noqa: PLR0913 (the options of a job)
    plans: Plans | None = None,
    choose: ChooseMode | None = None,
    time_limit_s: float | None = None,
    cache: str | Path | None = None,
    least_bytes: int | None = None,
    compress: str | None = None,
    even_alltoall: bool | None = None,
    transport: str | None = None,
    scratch: str | int | None = None,
    executor: str | None = None,
    helpers: Helpers | None = None,
    on_fault: str | None = None,
    expected_splits: Sequence[Any] | None = None,
    on_slow: str = ON_SLOWS[0],
    *,
    policy: Policy | None = None,
) -> Any:
    """Return options of the backend "topo", for `init_process_group("topo", pg_options=...)`.

    An option that is not given is taken from the environment variable named here, else from its
    default. TOPOPLAN_PLANS=off alone wins over what is given: it turns plans off for a whole job. A
    plan holds schedules of one collective; the stock collective is gloo's, NCCL's or MPI's own; a
    race times some of both at one size and keeps the fastest.

    - `plans` (TOPOPLAN_PLANS): a plan, a plan file (also of a joint plan, for the groups of a
      DeviceMesh, whose ranks are the GPUs' numbers), several of them, or a folder of plan files; a
      topology (file or preset), for which plans are synthesized when they are first needed; `auto`
      (default), the same for the machine that runs the ranks; or `off`, so that gloo or NCCL run
      everything.
    - `choose` (TOPOPLAN_CHOOSE, race): how the schedule for a size is chosen: `race`, `model` (by
      predicted times), `plan` (as the plan says), or a function of the size in bytes and the
      candidates. With `same-bits`, reproducible plans are synthesized, floating-point sums of all
      sizes use them, and sums that cannot use them are errors.
    - `time_limit_s` (TOPOPLAN_TIME_LIMIT, 20): limit in seconds for one synthesis, which rank 0
      does for all ranks.
    - `cache` (TOPOPLAN_CACHE): the folder where synthesized plans and race results are cached
      (default: topoplan in the user's cache folder, on Linux $XDG_CACHE_HOME or ~/.cache); if it
      cannot be used, nothing is cached, and a warning says so.
    - `least_bytes` (TOPOPLAN_LEAST_BYTES, 1024): gloo or NCCL handle floating-point buffers that
      are smaller.
    - `compress` (TOPOPLAN_COMPRESS, none): the codec (such as fp16 or int8) that compresses the
      messages of sums and averages (allreduce, reduce-scatter).
    - `even_alltoall` (TOPOPLAN_EVEN_ALLTOALL, no): a promise that all_to_all_single always has
      equal parts on all ranks, which no rank can check for the others. Plans are used for it only
      with this promise, whether or not the call lists the sizes.
    - `expected_splits`: the sizes that all_to_all_single is expected to be called with, as a matrix
      (row i, column j: the split that rank i sends to rank j), or each rank's own row. Calls of
      these sizes use a plan for them where it is faster; the ranks compare before each such call,
      so that others are right, too, and use the stock collective. Plan files are not used for them.
    - `transport` (TOPOPLAN_TRANSPORT, auto): what sends the messages of plans: auto (gloo on CPUs,
      NCCL on GPUs), or mpi for ranks that mpirun started; MPI's own collectives then race against
      the plan.
    - `executor` (TOPOPLAN_EXECUTOR, auto): how schedules are carried out: `point-to-point` by
      messages, `one-sided` in memory that the ranks share; with `auto` both race.
    - `scratch` (TOPOPLAN_SCRATCH, twice the largest buffer that was used): bytes of scratch memory,
      such as "512M", that this process may hold between calls; a call that needs more allocates it
      and frees it at its end.
    - `helpers` (TOPOPLAN_HELPERS, rest): the ranks that may carry bytes for a group that
      `topoplan.new_group` makes: `rest` for all others, `none`, or a list of ranks; torch's own
      new_group has none.
    - `on_fault` (TOPOPLAN_ON_FAULT, raise): what happens when a link is lost while all ranks live:
      `raise` ends the call by ExecutionError. With `replan`, all collectives on CPU tensors that
      plans can carry out, of any size, go on after a lost link, and so do barrier, gather and
      scatter; the stock collectives, which could not, take no part in races.
    - `on_slow` (warn): what happens when a link becomes slow under calls on CPU tensors by plans:
      `warn` logs it, `replan` also tries schedules for the rates that are left.
    - `policy`: `choose`, `time_limit_s`, `cache`, `least_bytes`, `compress`, `scratch`, `executor`,
      `helpers`, `on_fault` and `on_slow` at once, in place of them.

    All ranks use rank 0's plans; the other options must be the same on all ranks. Raise InputError
    if an option is invalid or contradicts another one.
    """
    heed_log_level()
    if policy is None:
        choose = choose if choose is not None else read(environment.CHOOSE)
        compress = compress or read(environment.COMPRESS)
    policy = make_policy(
        policy,
        choose=MODES[0] if choose is None else choose,
        time_limit_s=time_limit_s,
        cache=cache,
        least_bytes=least_bytes,
        compress=compress,
        scratch=scratch,
        executor=executor,
        helpers=helpers,
        on_fault=on_fault,
        on_slow=on_slow,
    )
    if are_plans_off():
        plans = OFF
    elif plans is None:
        plans = read(environment.PLANS) or AUTO
    if policy.keeps_bits and plans in _OFF_NAMES:
        raise bits_without_plans()
    transport = check_transport(transport)
    kinds = {} if plans in _OFF_NAMES else {name: find_layer(name) for name in policy.layers}
    if kinds:
        Names(PROCESS_GROUPS).find("layers")  # what calls of groups go through layers by
    for name, kind in kinds.items():
        why_not = kind.why_no_group or kind.why_not(find_kind(transport))
        refuse(policy.spell_layer(name), why_not)
    return BackendOptions(
        plans=plans,
        policy=policy,
        even_alltoall=(
            read_yes(environment.EVEN_ALLTOALL) if even_alltoall is None else even_alltoall
        ),
        transport=transport,
        expected_splits=(
            ()
            if expected_splits is None
            else Names(OPTIONS).find("expected_splits")(expected_splits)
        ),
    )


def are_plans_off() -> bool:
    """Return whether TOPOPLAN_PLANS turns plans off, which overrides any option in a script."""
    return read(environment.PLANS) in _OFF_NAMES


def bits_without_plans() -> InputError:
    """Return the InputError for `choose="same-bits"` (reproducible sums) while plans are off."""
    return InputError(
        f"choose={SAME_BITS!r} with plans {OFF} (an argument, or {environment.PLANS}): gloo and "
        "NCCL do not guarantee the same bits; give plans, or use auto"
    )
