"""Read the options of the backend "topo" from `backend_options` or environment variables."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import Store

from ...synth.groups.ranks import NONE, REST, Helpers, parse_ranks
from ...synth.plan import Plan
from ...topo.errors import InputError
from ..cache import find_cache_folder
from ..choose import MODES, SAME_BITS, ChooseMode, check_choose_mode
from ..codecs import find_codec
from ..communicator import REPLAN, find_executor, find_on_fault
from ..ranks.transport import check_transport
from ..recovery.connections import explain_no_guard
from ..scratch import parse_scratch
from .account import heed_log_level

log = logging.getLogger("topoplan")

AUTO, OFF = "auto", "off"
_OFF_NAMES = (OFF, "stock")
VARIABLE, HELPERS = "TOPOPLAN_PLANS", "TOPOPLAN_HELPERS"
# A plan, a plan file, a folder of plan files, several plans or files, a topology to plan for,
# "auto" or "off".
Plans = str | Path | Plan | Sequence[str | Path | Plan]
# Default limit for one synthesis, during which calls use the stock collectives (communicators.py).
_TIME_LIMIT_S = 20.0
# Default of `least_bytes`: gloo or NCCL handle smaller floating-point buffers.
_MIN_BYTES = 1024
# The sizes of the parts that each rank sends to each other, or those that this rank sends.
ExpectedSplits = tuple[tuple[int, ...], ...] | tuple[int, ...]
_YES, _NO = ("yes", "1", "true", "on"), ("no", "0", "false", "off", "")


@dataclass(frozen=True)
class Helped:
    """The launch around a group that has helpers, in the launch's numbers.

    `ranks` is the number of all ranks, `rank` this one; `store` is shared by all of them. Tensors
    on the device type `device` are helped with.
    """

    members: tuple[int, ...]
    helpers: tuple[int, ...]
    rank: int
    ranks: int
    store: Store
    device: str


@dataclass(frozen=True)
class BackendOptions:
    """The options of the backend, validated; `backend_options` explains and creates them."""

    plans: Plans
    choose: ChooseMode
    time_limit_s: float
    cache: Path | None
    least_bytes: int
    compress: str | None
    even_alltoall: bool = False
    transport: str = "auto"
    executor: str = "auto"
    scratch_bytes: int | None = None
    helpers: Helpers = REST
    helped: Helped | None = None
    on_fault: str = "raise"
    expected_splits: ExpectedSplits = ()

    @property
    def goes_on(self) -> bool:
        """Whether calls on CPU tensors go on after a lost link."""
        return self.on_fault == REPLAN and not self.off

    @property
    def off(self) -> bool:
        """Whether gloo or NCCL run everything."""
        return self.plans in _OFF_NAMES

    @property
    def keeps_bits(self) -> bool:
        """Whether an element's sum must have the same bits in whatever buffer it is."""
        return self.choose == SAME_BITS

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
) -> Any:
    """Return options of the backend "topo", for `init_process_group("topo", pg_options=...)`.

    An option that is not given is taken from the environment variable named here, else from its
    default. TOPOPLAN_PLANS=off alone wins over what is given: it turns plans off for a whole job.

    - `plans` (TOPOPLAN_PLANS): a plan, a plan file (also of a joint plan, for the groups of a
      DeviceMesh, whose ranks are the GPUs' numbers), several of them, or a folder of plan files; a
      topology (file or preset), for which plans are synthesized when they are first needed; `auto`
      (default), the same for the machine that runs the ranks; or `off`, so that gloo or NCCL run
      everything.
    - `choose` (TOPOPLAN_CHOOSE): as for Communicator. With `same-bits`, reproducible plans are
      synthesized, floating-point sums of all sizes use them, and sums that cannot use them are
      errors.
    - `time_limit_s` (TOPOPLAN_TIME_LIMIT, 20): limit in seconds for one synthesis, which rank 0
      does for all ranks.
    - `cache` (TOPOPLAN_CACHE): the folder where synthesized plans and race results are cached
      (default: topoplan in the user's cache folder, on Linux $XDG_CACHE_HOME or ~/.cache); if it
      cannot be used, nothing is cached, and a warning says so.
    - `least_bytes` (TOPOPLAN_LEAST_BYTES, 1024): gloo or NCCL handle floating-point buffers that
      are smaller.
    - `compress` (TOPOPLAN_COMPRESS, none): the codec that compresses the messages of sums and
      averages (allreduce, reduce-scatter), as for Communicator.
    - `even_alltoall` (TOPOPLAN_EVEN_ALLTOALL, no): a promise that all_to_all_single always has
      equal parts on all ranks, which no rank can check for the others. Plans are used for it only
      with this promise, whether or not the call lists the sizes.
    - `expected_splits`: the sizes that all_to_all_single is expected to be called with, as a matrix
      (row i, column j: the split that rank i sends to rank j), or each rank's own row. Calls of
      these sizes use a plan for them where it is faster; the ranks compare before each such call,
      so that others are right, too, and go by stock. Plan files are not used for them.
    - `transport` (TOPOPLAN_TRANSPORT, auto): what sends the messages of plans: auto (gloo on CPUs,
      NCCL on GPUs), or mpi for ranks that mpirun started; MPI's own collectives then race against
      the plan.
    - `executor` (TOPOPLAN_EXECUTOR, auto): what plays schedules, as for Communicator.
    - `scratch` (TOPOPLAN_SCRATCH, twice the largest buffer that was used): bytes of scratch memory,
      such as "512M", that this process may hold between calls; a call that needs more allocates it
      and frees it at its end.

    - `helpers` (TOPOPLAN_HELPERS, rest): the ranks that may carry bytes for a group that
      `topoplan.new_group` makes: `rest` for all others, `none`, or a list of ranks; torch's own
      new_group has none.
    - `on_fault` (TOPOPLAN_ON_FAULT, raise): as for Communicator. With `replan`, all collectives on
      CPU tensors that plans can carry out, of any size, go on after a lost link, and so do barrier,
      gather and scatter; the stock collectives, which could not, take no part in races.

    All ranks use rank 0's plans; the other options must be the same on all ranks. Raise InputError
    if an option is invalid or contradicts another one.
    """
    heed_log_level()
    mode = choose if choose is not None else os.environ.get("TOPOPLAN_CHOOSE", MODES[0])
    codec = compress or os.environ.get("TOPOPLAN_COMPRESS") or None
    check_choose_mode(mode, codec)
    if codec is not None:
        find_codec(codec)
    if time_limit_s is None:
        time_limit_s = _number("TOPOPLAN_TIME_LIMIT", _TIME_LIMIT_S)
    if least_bytes is None:
        least_bytes = int(_number("TOPOPLAN_LEAST_BYTES", _MIN_BYTES))
    if are_plans_off():
        plans = OFF
    elif plans is None:
        plans = os.environ.get(VARIABLE) or AUTO
    if mode == SAME_BITS and plans in _OFF_NAMES:
        raise bits_without_plans()
    if not time_limit_s > 0:
        raise InputError(f"time_limit_s={time_limit_s:g}: expected seconds above 0")
    if least_bytes < 0:
        raise InputError(f"least_bytes={least_bytes}: expected 0 or more")
    transport, fault = check_transport(transport), find_on_fault(on_fault)
    if fault == REPLAN and plans not in _OFF_NAMES:
        why_not = explain_no_guard(transport)
        if why_not is not None:
            raise InputError(f"on_fault={REPLAN!r}: {why_not}")
    return BackendOptions(
        plans=plans,
        choose=mode,
        time_limit_s=time_limit_s,
        cache=find_cache_folder(cache),
        least_bytes=least_bytes,
        compress=codec,
        even_alltoall=even_alltoall
        if even_alltoall is not None
        else _yes_or_no("TOPOPLAN_EVEN_ALLTOALL"),
        transport=transport,
        executor=find_executor(executor),
        scratch_bytes=parse_scratch(scratch),
        helpers=_parse_helpers(helpers),
        on_fault=fault,
        expected_splits=_read_splits(expected_splits),
    )


def _read_splits(given: Sequence[Any] | None) -> ExpectedSplits:
    """Return announced sizes of parts; raise InputError if they are no row and no matrix."""
    if given is None:
        return ()
    listed = given.tolist() if hasattr(given, "tolist") else given
    try:
        if all(isinstance(size, int) for size in listed):
            rows = [list(listed)]
        else:
            rows = [[int(size) for size in row] for row in listed]
            if len({len(rows), *map(len, rows)}) > 1:
                raise ValueError
        if not rows[0] or min(map(min, rows)) < 0:
            raise ValueError
    except (TypeError, ValueError):
        raise InputError(
            f"expected_splits={given!r:.60}: expected sizes of 0 or more, as a square matrix or as "
            "this rank's row"
        ) from None
    return tuple(rows[0]) if isinstance(listed[0], int) else tuple(map(tuple, rows))


def _parse_helpers(helpers: Helpers | None) -> Helpers:
    """Return an option's helpers, else those of TOPOPLAN_HELPERS, by default all other ranks."""
    if helpers is None:
        text = os.environ.get(HELPERS) or REST
        if text == NONE:
            return NONE
        return REST if text == REST else tuple(parse_ranks(text, HELPERS))
    if not isinstance(helpers, str):
        return tuple(helpers)
    if helpers not in (REST, NONE):
        raise InputError(f"helpers={helpers!r:.40}: expected {REST}, {NONE}, or a list of ranks")
    return helpers


def are_plans_off() -> bool:
    """Return whether TOPOPLAN_PLANS turns plans off, whatever a script says."""
    return os.environ.get(VARIABLE) in _OFF_NAMES


def bits_without_plans() -> InputError:
    """Return the error of asking for the same bits where plans are off."""
    return InputError(
        f"choose={SAME_BITS!r} with plans {OFF} (an argument, or {VARIABLE}): gloo and NCCL do not "
        "guarantee the same bits; give plans, or use auto"
    )


def _number(name: str, default: float) -> float:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name}={text!r}: expected a number") from None


def _yes_or_no(name: str) -> bool:
    text = os.environ.get(name, "").lower()
    if text not in (*_NO, *_YES):
        raise InputError(f"{name}={text!r}: expected yes or no")
    return text in _YES
