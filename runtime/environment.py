"""The environment variables that stand for options, read here alone.

An empty value counts as none. docs/training.md says what each option does.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from platformdirs import user_cache_path

from ..synth.groups.ranks import NONE, REST, Helpers, parse_ranks
from ..synth.sizes import parse_size
from ..topo.errors import InputError
from .option_names import EXECUTORS, ON_FAULTS

PLANS = "TOPOPLAN_PLANS"
CHOOSE = "TOPOPLAN_CHOOSE"
TIME_LIMIT = "TOPOPLAN_TIME_LIMIT"
CACHE = "TOPOPLAN_CACHE"
LEAST_BYTES = "TOPOPLAN_LEAST_BYTES"
COMPRESS = "TOPOPLAN_COMPRESS"
EVEN_ALLTOALL = "TOPOPLAN_EVEN_ALLTOALL"
TRANSPORT = "TOPOPLAN_TRANSPORT"
EXECUTOR = "TOPOPLAN_EXECUTOR"
SCRATCH = "TOPOPLAN_SCRATCH"
HELPERS = "TOPOPLAN_HELPERS"
ON_FAULT = "TOPOPLAN_ON_FAULT"
LOG = "TOPOPLAN_LOG"
LOG_FILE = "TOPOPLAN_LOG_FILE"
# Default limit for one synthesis, during which calls use the stock collectives.
_TIME_LIMIT_S = 20.0
# gloo or NCCL handle smaller floating-point buffers.
_LEAST_BYTES = 1024
# Levels of logging that users may name.
_LEVELS = ("debug", "info", "warning", "error")
_YES, _NO = ("yes", "1", "true", "on"), ("no", "0", "false", "off")


def read(variable: str) -> str | None:
    """Return a variable's value, None if it is not set or empty."""
    return os.environ.get(variable) or None


def heed_log_level() -> None:
    """Set the log level from TOPOPLAN_LOG.

    Logs go to standard error, unless the program has handlers. Raise InputError if the level is
    invalid.
    """
    level = read(LOG)
    if not level:
        return
    if level.lower() not in _LEVELS:
        raise InputError(f"{LOG}={level!r}: expected one of {', '.join(_LEVELS)}")
    log = logging.getLogger("topoplan")
    log.setLevel(level.upper())
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("topoplan: %(levelname)s: %(message)s"))
        log.addHandler(handler)


def read_number(variable: str, default: float) -> float:
    """Return a variable's number, or `default` if it is not set.

    Raise InputError if it is no number.
    """
    text = read(variable)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise InputError(f"{variable}={text!r}: expected a number") from None


def read_yes(variable: str) -> bool:
    """Return whether a variable says yes; False if it is not set.

    Raise InputError if it says neither yes nor no.
    """
    text = read(variable) or _NO[0]
    if text.lower() not in (*_YES, *_NO):
        raise InputError(f"{variable}={text!r}: expected yes or no")
    return text.lower() in _YES


def read_one_of(variable: str, known: Sequence[str]) -> str:
    """Return a variable's value, which must be one of `known`; the first of these if it is not set.

    Raise InputError if it is none of them.
    """
    value = read(variable) or known[0]
    check_one_of(variable, value, known)
    return value


def check_one_of(name: str, value: object, known: Sequence[str]) -> None:
    """Raise InputError unless `value`, of the option or variable `name`, is one of `known`."""
    if value not in known:
        raise InputError(f"{name}={value!r}: expected one of {', '.join(known)}")


def read_executor() -> str:
    """Return how schedules are carried out, as TOPOPLAN_EXECUTOR says, by default "auto".

    Raise InputError if it is none of the known ways.
    """
    return read_one_of(EXECUTOR, EXECUTORS)


def read_on_fault() -> str:
    """Return the answer to a lost link that TOPOPLAN_ON_FAULT names, by default "raise".

    Raise InputError if it is none of the known ones.
    """
    return read_one_of(ON_FAULT, ON_FAULTS)


def read_time_limit_s() -> float:
    """Return the time limit of one synthesis in seconds, from TOPOPLAN_TIME_LIMIT or the default.

    Raise InputError if it is no number.
    """
    return read_number(TIME_LIMIT, _TIME_LIMIT_S)


def read_least_bytes() -> int:
    """Return the size in bytes from which buffers get plans: TOPOPLAN_LEAST_BYTES, or the default.

    Raise InputError if it is no number.
    """
    return int(read_number(LEAST_BYTES, _LEAST_BYTES))


def find_cache_folder(named: str | Path | None = None) -> Path | None:
    """Return the folder for plans and races, or None if the home directory is not known.

    It is `named`, else TOPOPLAN_CACHE, else topoplan in the user's cache folder.
    """
    try:
        return Path(
            named or read(CACHE) or user_cache_path("topoplan", appauthor=False)
        ).expanduser()
    except RuntimeError:  # no HOME and no passwd entry, as for `docker run --user 1234`
        return None


def parse_scratch(value: str | int | None) -> int | None:
    """Return a budget in bytes from an option, else from TOPOPLAN_SCRATCH; None for the default.

    Raise InputError if the value is not a size.
    """
    where = "scratch"
    if value is None:
        where, value = SCRATCH, read(SCRATCH)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    try:
        return parse_size(value if isinstance(value, str) else "")
    except InputError:
        raise InputError(
            f"{where}={value!r}: expected the bytes of scratch memory to keep between calls, such "
            "as 0, 64M or 2GiB"
        ) from None


def read_helpers() -> Helpers:
    """Return which ranks may help a group (TOPOPLAN_HELPERS): "rest" (default), "none", or ranks.

    Helpers carry bytes for a group that they are not in. Raise InputError if the text is no list of
    ranks.
    """
    text = read(HELPERS) or REST
    if text == NONE:
        return NONE
    return REST if text == REST else tuple(parse_ranks(text, HELPERS))
