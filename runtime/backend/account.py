"""One log line per group on the plans that its collectives used, and why (TOPOPLAN_LOG)."""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping

from ...topo.errors import InputError
from ..choose import ChooseMode
from ..communicator import Communicator

log = logging.getLogger("topoplan")
VARIABLE = "TOPOPLAN_LOG"
# Levels of logging that users may name.
LEVELS = ("debug", "info", "warning", "error")
# Choices are listed for buffers below 2**48 bytes: more than any host has.
_MAX_BITS = 48
# Bytes per unit, the largest first.
_FACTORS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def heed_log_level() -> None:
    """Set the log level from TOPOPLAN_LOG.

    Logs go to standard error, unless the program has handlers. Raise InputError if the level is
    invalid.
    """
    level = os.environ.get(VARIABLE)
    if not level:
        return
    if level.lower() not in LEVELS:
        raise InputError(f"{VARIABLE}={level!r}: expected one of {', '.join(LEVELS)}")
    log.setLevel(level.upper())
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(levelname)s: %(message)s"))
        log.addHandler(handler)


class Account:
    """The log of the group called `name`; only its first rank writes it, if enabled (`is_wanted`).

    `stock` is torch's name for what runs its stock collectives on GPUs: torch has several engines
    for NCCL, which differ in speed.
    """

    def __init__(self, name: str, ranks: Iterable[int], *, is_first: bool, stock: str = "") -> None:
        engine = f", stock by {stock}" if stock.startswith("nccl") else ""
        self._title = f"{name}, ranks {_shorten(list(ranks))}{engine}"
        self.is_wanted = is_first and log.isEnabledFor(logging.INFO)
        self._left: Counter[tuple[str, str]] = Counter()

    def leave(self, collective: str, why: str) -> None:
        """Count a call that was left to the stock collective, and the reason `why`."""
        if not self.is_wanted:
            return
        if (collective, why) not in self._left:
            log.debug("%s: %s stock: %s", self._title, collective, why)
        self._left[collective, why] += 1

    def log_once(self, communicators: Mapping[str, Communicator], mode: ChooseMode) -> None:
        """Write the group's line to the log; later calls do nothing.

        `communicators` are by collective; `mode` is the choose mode of all of them.
        """
        if not self.is_wanted:
            return
        self.is_wanted = False
        parts = [f"{name} by {_describe(one, mode)}" for name, one in communicators.items()]
        parts += [
            f"{collective} stock: {why} ({calls} call{'s' * (calls > 1)})"
            for (collective, why), calls in self._left.items()
        ]
        log.info("%s: %s", self._title, "; ".join(parts) or "no collective that plans are for")


def _describe(communicator: Communicator, mode: ChooseMode) -> str:
    """Describe the plan, and the choice at each settled size."""
    plan, used = communicator.plan, []
    if callable(mode):
        used = ["as the function says"]
    elif mode == "plan":
        used = [f"{x.schedule.label} from {_format_size(x.min_bytes)}" for x in plan.entries]
    else:
        for bits in range(1, _MAX_BITS):
            choice = communicator.choice((1 << bits) - 1)
            if choice is not None:
                raced_us = dict(choice.raced)
                times = [f"{raced_us.pop(choice.label, 0.0):.0f} us"]
                times += [f"{label} {us:.0f} us" for label, us in raced_us.items()]
                took = f" ({', '.join(times)})" if choice.raced else ""
                used.append(f"{choice.label} at {_format_size(1 << (bits - 1))}{took}")
    return f"plan {plan.hash[:16]} for {plan.topology.name}: {', '.join(used) or 'no size settled'}"


def _format_size(size_bytes: int) -> str:
    for factor, unit in _FACTORS:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"


def _shorten(ranks: list[int]) -> str:
    """Return consecutive ranks as a range such as 0-3, other ranks as a list."""
    if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return " ".join(map(str, ranks))
