"""A thread beside a block of code, for what happens to an emulated machine meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ....topo.errors import TopoplanError


@contextmanager
def run_beside(name: str, body: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `body` in a thread called `name` while the `with` block lasts.

    It is given an event that is set at the end of the block, and must return soon after. Raise the
    TopoplanError that it raised, at the end of the block.
    """
    over, errors = threading.Event(), list[TopoplanError]()

    def run() -> None:
        try:
            body(over)
        except TopoplanError as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]
