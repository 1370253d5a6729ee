"""How plans are carried out: the one options object.

Communicators, the DDP hook, the backend and the benchmark make or take the same one. It is checked
when it is made, and imports no torch, so that commands can make it before they start ranks. A race
times schedules and the stock collective (the backend's own), and keeps the fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..extras import CODECS, Names
from ..synth.groups.ranks import NONE, REST, Helpers
from ..synth.ir.schedule import Schedule
from ..topo.errors import InputError, suggest
from .environment import (
    check_one_of,
    find_cache_folder,
    parse_scratch,
    read_executor,
    read_helpers,
    read_least_bytes,
    read_on_fault,
    read_time_limit_s,
)
from .option_names import (
    EXECUTORS,
    LAYER_OPTIONS,
    MODES,
    ON_FAULTS,
    ON_SLOWS,
    ONE_SIDED,
    POINT_TO_POINT,
    REDUCTIONS,
    REPLAN,
    SAME_BITS,
)

if TYPE_CHECKING:
    from ..synth.plan import Plan

ChooseMode = str | Callable[[int, Sequence[Schedule]], Schedule | str | None]
"""How the schedule for a size is picked: a name in MODES, or a function. The function gets the size
in bytes and the candidates, and returns one of them, None for the stock collective, or a name in
MODES; it must return the same on all ranks.
"""
# Modes in which candidates race; among schedules that keep bits, without the stock collective.
_RACED = (MODES[0], SAME_BITS)
DEFAULT_TIMEOUT = timedelta(seconds=300)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How plans are carried out: the options of Communicator, ddp_hook and backend_options in one.

    `choose` (race, model, plan, same-bits, or a function) picks the schedule for a size, `timeout`
    limits a call, `compress` names a codec for messages, `reduction` says where it rounds (hops,
    once), `executor` how schedules are carried out (point-to-point: by messages, one-sided: in
    shared memory, auto: both race), `on_fault` and `on_slow` what happens when a link is lost or
    slow, `cache` is the folder of plans and race results. `runners` names what other packages add
    to carry out calls (entry points `topoplan.runners`), `around` the layers that they put around
    calls (`topoplan.layers`), the innermost first. `time_limit_s` of a synthesis, `least_bytes` of
    a buffer, `scratch` memory and `helpers` (ranks that carry bytes for a group) are the backend's
    alone, whose timeout is its group's. Environment variables decide where `executor`, `on_fault`,
    `cache`, `scratch`, `time_limit_s`, `least_bytes` or `helpers` are not given. Raise InputError
    if an option is invalid or contradicts another one.
    """

    choose: ChooseMode = MODES[0]
    timeout: timedelta = DEFAULT_TIMEOUT
    compress: str | None = None
    reduction: str = REDUCTIONS[0]
    executor: str = field(default_factory=read_executor)
    on_fault: str = field(default_factory=read_on_fault)
    on_slow: str = ON_SLOWS[0]
    cache: str | Path | None = None
    scratch: str | int | None = None
    time_limit_s: float = field(default_factory=read_time_limit_s)
    least_bytes: int = field(default_factory=read_least_bytes)
    helpers: Helpers = field(default_factory=read_helpers)
    runners: tuple[str, ...] = ()
    around: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (
            ("executor", EXECUTORS),
            ("on_fault", ON_FAULTS),
            ("on_slow", ON_SLOWS),
            ("reduction", REDUCTIONS),
        ):
            check_one_of(name, getattr(self, name), known)
        if not callable(self.choose):
            self.check_mode(self.choose)
        codecs = Names(CODECS)
        if self.compress is not None and self.compress not in codecs:
            raise InputError(
                f"compress={self.compress!r}{suggest(self.compress, [*codecs])}: "
                f"{codecs.explain_missing(self.compress)}"
            )
        if self.follows:
            self._check_follows()
        if self.reduction == "once" and self.compress is None:
            raise InputError("reduction='once' without compress: nothing is rounded; name a codec")
        parse_scratch(self.scratch)
        for name in ("runners", "around"):
            given = getattr(self, name)
            is_list = isinstance(given, (list, tuple))
            if not is_list or not all(isinstance(x, str) for x in given):
                raise InputError(f"{name}={given!r:.60}: expected a tuple of names")
            object.__setattr__(self, name, tuple(given))
        if not self.time_limit_s > 0:
            raise InputError(f"time_limit_s={self.time_limit_s:g}: expected seconds above 0")
        if self.least_bytes < 0:
            raise InputError(f"least_bytes={self.least_bytes}: expected 0 or more")
        if isinstance(self.helpers, str) and self.helpers not in (REST, NONE):
            raise InputError(
                f"helpers={self.helpers!r:.40}: expected {REST}, {NONE}, or a list of ranks"
            )

    def _check_follows(self) -> None:
        """Raise InputError if what chooses schedules does not let them follow slow links."""
        if callable(self.choose):
            raise InputError(
                f"on_slow={REPLAN!r} excludes a function for choose: it decides on schedules "
                "itself, and is not asked again"
            )
        if self.keeps_bits:
            raise InputError(
                f"on_slow={REPLAN!r} excludes choose={SAME_BITS!r}: a plan for slow links adds in "
                "another order, so that sums would get other bits"
            )

    def check_mode(self, mode: object) -> None:
        """Raise InputError unless `mode`, a value of `choose`, is known and fits the compression.

        If bits must be reproducible, values cannot be compressed.
        """
        check_one_of("choose", mode, MODES)
        if mode == SAME_BITS and self.compress is not None:
            raise InputError(
                f"choose={SAME_BITS!r} with compress={self.compress!r}: values are rounded in "
                "blocks, so an element's bits depend on its place in the buffer; leave one of them "
                "out"
            )

    @property
    def cache_folder(self) -> Path | None:
        """The folder for cached plans and race results; None if there can be none."""
        return find_cache_folder(self.cache)

    @property
    def scratch_bytes(self) -> int | None:
        """The bytes of scratch memory the process may hold between calls; None for the default."""
        return parse_scratch(self.scratch)

    @property
    def replans(self) -> bool:
        """Whether a call whose link is lost is finished by another plan (`on_fault="replan"`)."""
        return self.on_fault == REPLAN

    @property
    def follows(self) -> bool:
        """Whether other schedules are tried when a link becomes slow (`on_slow="replan"`)."""
        return self.on_slow == REPLAN

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers around calls, innermost first: `around`, then other options'."""
        asked = (name for name in LAYER_OPTIONS if getattr(self, name) == REPLAN)
        return (*self.around, *asked)

    def spell_layer(self, name: str) -> str:
        """Return the option that asks for a layer, for errors: "on_fault='replan'"."""
        return f"around={name!r}" if name in self.around else f"{name}={REPLAN!r}"

    @property
    def keeps_bits(self) -> bool:
        """Whether an element's sum must have the same bits in any buffer (`choose="same-bits"`)."""
        return self.choose == SAME_BITS

    @property
    def sends_alone(self) -> bool:
        """Whether schedules are only sent as messages (`executor="point-to-point"`)."""
        return self.executor == POINT_TO_POINT

    @property
    def plays_alone(self) -> bool:
        """Whether schedules are sent as messages only if they must (`executor="one-sided"`)."""
        return self.executor == ONE_SIDED


def is_raced(mode: object) -> bool:
    """Return whether candidates race in a choose mode; False for what is no mode."""
    return mode in _RACED


def races_stock(mode: object) -> bool:
    """Return whether the stock collective races, too, in a choose mode.

    False for what is no mode.
    """
    return mode == MODES[0]


def check_plan(mode: object, plan: Plan) -> None:
    """Raise InputError if a plan's schedules cannot give what a choose mode promises.

    With `same-bits` all of them must add every element in the same order.
    """
    if mode == SAME_BITS:
        plan.check_one_bracketing()


def make_policy(policy: Policy | None, **given: Any) -> Policy:
    """Return `policy`, or the one that the options `given` make.

    Of options without a fixed default, None and "" count as not given. Raise InputError if there
    are both a policy and options, or an option is invalid.
    """
    defaults = {option.name: option.default for option in fields(Policy)}
    given = {
        name: value
        for name, value in given.items()
        if value not in (None, "") or defaults[name] not in (None, MISSING)
    }
    if policy is None:
        return Policy(**given)
    if others := [name for name, value in given.items() if value != defaults[name]]:
        raise InputError(
            f"policy and {', '.join(others)}: options are given in one place; put all of them into "
            "the policy"
        )
    return policy
