"""What tests of the network tier need of the system: `@pytest.mark.network("namespaces")`.

conftest skips a test whose needs are not met, with the reason.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

import pytest

from topoplan.cli.commands import list_commands
from topoplan.extras import BY_NAME

T = TypeVar("T")

# Why tests may be skipped on CI, which has no GPUs and one version of torch. Recorded machines lie
# outside the checkout.
_EXPECTED = re.compile(r"Skipped: (no CUDA GPU|torch )")
_NOT_RECORDED = re.compile(r"Skipped: (recorded machine|input) .* is not here")


def has_extra(name: str) -> bool:
    """Return whether an extra is in this copy: the core's tests leave out what it adds."""
    return BY_NAME[name].is_here


def list_runnable(cases: Iterable[T]) -> list[T]:
    """Return a test's cases whose command is in this copy: a line, or a tuple that begins with the
    command's name, a line or a list of arguments.
    """
    here = list_commands()

    def find_command(case: Any) -> str:
        first = case if isinstance(case, str) else case[0]
        return first.split()[0] if isinstance(first, str) else str(first[0])

    return [case for case in cases if find_command(case) in here]


@cache
def why_unmet(need: str) -> str:
    """Return why something is not to be had here, in one line; "" where it is.

    KeyError for a name that is not in the table.
    """
    return _CHECKS[need]() or ""


def list_unexpected_skips(reasons: Iterable[str], *, has_recordings: bool) -> list[str]:
    """Return those of pytest's reasons for skips that CI must not have, each once, sorted.

    `has_recordings` says whether the folder of recorded machines is there at all.
    """
    return sorted(
        {
            reason
            for reason in reasons
            if not _EXPECTED.match(reason) and (has_recordings or not _NOT_RECORDED.match(reason))
        }
    )


def _why_no_mpi4py() -> str:
    return "" if find_spec("mpi4py") else "mpi4py (extra mpi) is not installed"


def _why_no_mpirun() -> str:
    if shutil.which("mpirun") is None:
        return "there is no mpirun (Debian: apt-get install openmpi-bin)"
    done = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False)
    return "" if "Open MPI" in done.stdout else "mpirun is not Open MPI's"


def _why_no_browser() -> str:
    from write_screenshots import find_browser  # a script, which ranks need not find

    return "" if find_browser() else "no chromium (Debian: apt-get install chromium)"


def _why_no_namespaces() -> str | None:
    if not BY_NAME["emulate"].is_here:
        return "the extra emulate is not in this copy"
    from topoplan.runtime.extras.emulate import why_not

    return why_not()


def _why_no_mpi_between_namespaces() -> str | None:
    if reason := _why_no_namespaces():
        return reason
    from topoplan.runtime.extras.emulate import why_not_mpi

    return why_not_mpi()


_CHECKS: dict[str, Callable[[], str | None]] = {
    "namespaces": _why_no_namespaces,
    "MPI between namespaces": _why_no_mpi_between_namespaces,
    "mpi4py": _why_no_mpi4py,
    "mpirun": _why_no_mpirun,
    "browser": _why_no_browser,
    "quiet": lambda: "",  # what measures rates or times: it runs alone, and can always be had
}


def long_cases(cases: Iterable[Any], *names: object) -> list[Any]:
    """Return a test's cases, those whose first value is one of `names` among the long ones."""
    return [
        pytest.param(*case, marks=pytest.mark.long)
        if isinstance(case, tuple) and case[0] in names
        else pytest.param(case, marks=pytest.mark.long)
        if case in names
        else case
        for case in cases
    ]
