"""Cause faults on an emulated machine while ranks run on it: cut, mend and slow links, kill ranks.

Times count from when every rank is ready for calls (`announce_ready` in ranks/launch.py), so that
they mean the same on slow and fast hosts. Programs that do not announce it have a time limit.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from ....topo.errors import InputError, TopoplanError, suggest
from ...ranks.launch import list_ready
from .blueprint import Blueprint
from .network import Network

EXAMPLE = "cut gpu0-gpu3 at 2s, mend gpu0-gpu3 at 4s, slow gpu1-gpu2 x0.25 at 5s, kill rank 2 at 8s"
# Time for ranks to import torch and connect, after which times count in any case.
_READY_S = 30.0
# Polling interval of the files by which ranks say that they are ready.
_POLL_S = 0.05
_VERBS = ("cut", "mend", "slow", "kill")
_CLAUSE = re.compile(r"(?P<verb>\S+)\s+(?P<what>.+?)\s+at\s+(?P<time>\S.*)", re.IGNORECASE)
_SLOW = re.compile(r"(?P<link>\S+)\s+x\s*(?P<factor>\d{0,9}\.?\d{1,9})", re.IGNORECASE)
_TIME = re.compile(r"(?P<value>\d{0,9}\.?\d{1,9})\s*(?P<unit>ms|s|)", re.IGNORECASE)
_RANK = re.compile(r"rank\s*(?P<rank>\d{1,9})", re.IGNORECASE)


@dataclass(frozen=True)
class Injection:
    """A fault to cause `at_s` seconds after all ranks are ready.

    `kind` is "cut" or "mend" (the cables between the pairs of devices `links`), "slow" (those, to
    `factor` of their rates), or "kill" (rank number `rank`; -1 otherwise). `what` names the link,
    or the device all of whose links are meant, in messages.
    """

    at_s: float
    kind: str
    what: str = ""
    links: tuple[tuple[str, str], ...] = ()
    factor: Fraction = Fraction(1)
    rank: int = -1

    def __str__(self) -> str:
        """Return the fault as it is written, without its time."""
        if self.kind == "kill":
            return f"kill rank {self.rank}"
        times = f" x{float(self.factor):g}" if self.kind == "slow" else ""
        return f"{self.kind} {self.what}{times}"


@dataclass(frozen=True)
class Rehearsal:
    """The `faults` to cause while a command runs, and `say`, which is given a line about each."""

    faults: Sequence[Injection]
    say: Callable[[str], None]


def parse_faults(text: str, built: Blueprint) -> list[Injection]:
    """Parse a text like EXAMPLE into faults, ordered by time.

    Raise InputError if it cannot be parsed, or names links or ranks that the machine `built` lacks.
    """
    clauses = [clause.strip() for clause in text.split(",")]
    return sorted((_parse_clause(clause, built) for clause in clauses), key=lambda x: x.at_s)


def _parse_clause(clause: str, built: Blueprint) -> Injection:
    def refuse(why: str) -> InputError:
        return InputError(f"{clause!r}: {why}", parameter="inject")

    match = _CLAUSE.fullmatch(clause)
    if match is None:
        raise refuse(f"expected faults such as {EXAMPLE!r}")
    verb, what = match["verb"].lower(), match["what"]
    if verb not in _VERBS:
        raise refuse(
            f"{match['verb']} is unknown{suggest(verb, _VERBS)}; expected one of "
            f"{', '.join(_VERBS)}"
        )
    spelled = _TIME.fullmatch(match["time"].strip())
    if spelled is None:
        raise refuse(f"{match['time']!r} is not a time; expected for example 2s, 1.5s or 500ms")
    at_s = float(spelled["value"]) / (1000 if spelled["unit"].lower() == "ms" else 1)
    if verb == "kill":
        rank, ranks = _RANK.fullmatch(what), len(built.home)
        if rank is None or int(rank["rank"]) >= ranks:
            raise refuse(f"{what!r} is not a rank; expected rank 0 to rank {ranks - 1}")
        return Injection(at_s, verb, rank=int(rank["rank"]))
    factor = Fraction(1)
    if verb == "slow":
        slow = _SLOW.fullmatch(what)
        if slow is None or not Fraction(slow["factor"]):
            raise refuse("expected a link and a factor of its rate above 0: slow gpu1-gpu2 x0.25")
        what, factor = slow["link"], Fraction(slow["factor"])
    links = _find_links(what, built)
    if not links:
        every = [f"{built.devices[x.a]}-{built.devices[x.b]}" for x in built.cables]
        shown = ", ".join(every[:6]) + (" ..." if len(every) > 6 else "")
        raise refuse(
            f"{what!r} is no link or device of the emulated machine; its links are {shown}"
        )
    name = what if what in built.devices else "-".join(links[0])
    return Injection(at_s, verb, name, links, factor)


def _find_links(text: str, built: Blueprint) -> tuple[tuple[str, str], ...]:
    """Return the devices of a link "A-B" or "A:B", or all links of a device; ids may have hyphens.

    Empty if there are none.
    """
    links = [(built.devices[x.a], built.devices[x.b]) for x in built.cables]
    if text in built.devices:
        return tuple(link for link in links if text in link)
    for a, b in links:
        for ends in ((a, b), (b, a)):
            if text in ("-".join(ends), ":".join(ends)):
                return (ends,)
    return ()


@contextmanager
def rehearse(
    network: Network, rehearsal: Rehearsal | None, folder: Path, kill: Callable[[int], None]
) -> Iterator[None]:
    """Cause the faults of a rehearsal (None: no faults) while the `with` block lasts.

    `folder` is the one that the ranks share; `kill` ends a rank, given its number. At the end of
    the block, raise the error of a fault that could not be caused.
    """
    if rehearsal is None:
        yield
        return
    over = threading.Event()
    errors: list[TopoplanError] = []

    def run() -> None:
        try:
            _cause_all(network, rehearsal, folder, kill, over)
        except TopoplanError as error:
            errors.append(error)
            rehearsal.say(f"faults: {error}")

    thread = threading.Thread(target=run, name="topoplan-faults")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]


def _cause_all(
    network: Network,
    rehearsal: Rehearsal,
    folder: Path,
    kill: Callable[[int], None],
    over: threading.Event,
) -> None:
    ranks = set(range(len(network.blueprint.home)))
    latest = time.monotonic() + _READY_S
    while not (is_ready := list_ready(folder) >= ranks) and time.monotonic() < latest:
        if over.wait(_POLL_S):
            break
    began = time.monotonic()
    if not over.is_set():
        when = "all ranks are ready" if is_ready else f"the ranks run for {_READY_S:g} s"
        rehearsal.say(f"{when}; times of faults count from now")
    for number, fault in enumerate(rehearsal.faults):
        if over.wait(max(0.0, began + fault.at_s - time.monotonic())):
            left = ", ".join(f"{x} at {x.at_s:g}s" for x in rehearsal.faults[number:])
            rehearsal.say(f"the ranks have ended before these faults: {left}")
            return
        if fault.kind == "kill":
            kill(fault.rank)
        for link in fault.links:
            if fault.kind == "slow":
                network.scale_rates(*link, fault.factor)
            else:
                (network.cut if fault.kind == "cut" else network.mend)(*link)
        rehearsal.say(f"{time.monotonic() - began:.2f} s: {fault}")
