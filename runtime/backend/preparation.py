"""A plan found or made by a thread of its own, while the calls that it is for go on without it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...synth.plan import Plan

# Between two looks for an error that makes waiting vain: shorter than people notice.
_PAUSE_S = 0.05


class Preparation:
    """The search for one plan by `find`, which begins at once."""

    def __init__(self, find: Callable[[], Plan | None]) -> None:
        self._find = find
        self._plan: Plan | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._search, name="topoplan-plans", daemon=True)
        self._ended = threading.Event()
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether the search has ended."""
        return self._ended.is_set()

    def wait(self, find_error: Callable[[], Exception | None]) -> Plan | None:
        """Return the plan, or None where there is none. Raises what the search has raised, or what
        `find_error` finds.
        """
        while not self._ended.wait(_PAUSE_S):
            error = find_error()
            if error is not None:
                raise error
        if self._error is not None:
            raise self._error
        return self._plan

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    def _search(self) -> None:
        try:
            self._plan = self._find()
        except Exception as error:  # raised where the plan is waited for
            self._error = error
        finally:
            self._ended.set()
