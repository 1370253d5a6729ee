"""Cause faults on an emulated machine while ranks run on it: cut, mend and slow links, kill ranks.

Times count from when every rank is ready for calls (`announce_ready` in ranks/launch.py), so that
they mean the same on slow and fast hosts. Programs of which no rank announces it have a time limit.
Steps are counted by the ranks (`announce_step`): of training, and of topo-run's timed calls.
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
from ...ranks.launch import count_steps, list_ready
from .beside import run_beside
from .blueprint import Blueprint
from .network import Network

EXAMPLE = "cut gpu0-gpu3 at 2s, mend gpu0-gpu3 at 4s, slow gpu1-gpu2 x0.25 at 5s, kill rank 2 at 8s"
# Time for ranks to import torch and connect, after which times count unless a rank is ready.
_READY_S = 30.0
# Polling interval of the files by which ranks say that they are ready.
_POLL_S = 0.05
# That of the files in which they count their steps, which may be short.
_STEP_POLL_S = 0.01
_VERBS = ("cut", "mend", "slow", "kill")
_CLAUSE = re.compile(
    r"(?P<verb>\S+)\s+(?P<what>.+?)\s+(?:at\s+(?P<time>\S.*)|after\s+step\s+(?P<step>\S.*))",
    re.IGNORECASE,
)
_SLOW = re.compile(r"(?P<link>\S+)\s+x\s*(?P<factor>\d{0,9}\.?\d{1,9})", re.IGNORECASE)
_TIME = re.compile(r"(?P<value>\d{0,9}\.?\d{1,9})\s*(?P<unit>ms|s|)", re.IGNORECASE)
_STEP = re.compile(r"\d{1,9}")
_RANK = re.compile(r"rank\s*(?P<rank>\d{1,9})", re.IGNORECASE)


@dataclass(frozen=True)
class Injection:
    """A fault to cause `at_s` seconds after all ranks are ready, or once `after_step` steps ended.

    `after_step` is 0 for a fault at a time. `kind` is "cut" or "mend" (the cables between the pairs
    of devices `links`), "slow" (those, to `factor` of their rates), or "kill" (rank number `rank`;
    -1 otherwise). `what` names the link, or the device all of whose links are meant, in messages.
    """

    at_s: float
    kind: str
    what: str = ""
    links: tuple[tuple[str, str], ...] = ()
    factor: Fraction = Fraction(1)
    rank: int = -1
    after_step: int = 0

    @property
    def when(self) -> str:
        """The time as it is written: "at 2s" or "after step 20"."""
        return f"after step {self.after_step}" if self.after_step else f"at {self.at_s:g}s"

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
    """Parse a text like EXAMPLE into faults, ordered by time; those after steps come first.

    Raise InputError if it cannot be parsed, or names links or ranks that the machine `built` lacks.
    """
    clauses = [clause.strip() for clause in text.split(",")]
    parsed = (_parse_clause(clause, built) for clause in clauses)
    return sorted(parsed, key=lambda x: (x.at_s, x.after_step))


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
    at_s, step = 0.0, 0
    if match["step"] is not None:
        step = int(match["step"]) if _STEP.fullmatch(match["step"]) else 0
        if not step:
            raise refuse(f"{match['step']!r} is not a step; expected a number above 0, such as 20")
    else:
        spelled = _TIME.fullmatch(match["time"].strip())
        if spelled is None:
            raise refuse(f"{match['time']!r} is not a time; expected for example 2s, 1.5s or 500ms")
        at_s = float(spelled["value"]) / (1000 if spelled["unit"].lower() == "ms" else 1)
    if verb == "kill":
        rank, ranks = _RANK.fullmatch(what), len(built.home)
        if rank is None or int(rank["rank"]) >= ranks:
            raise refuse(f"{what!r} is not a rank; expected rank 0 to rank {ranks - 1}")
        return Injection(at_s, verb, rank=int(rank["rank"]), after_step=step)
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
    return Injection(at_s, verb, name, links, factor, after_step=step)


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

    def cause(over: threading.Event) -> None:
        try:
            _cause_all(network, rehearsal, folder, kill, over)
        except TopoplanError as error:
            rehearsal.say(f"faults: {error}")
            raise

    with run_beside("topoplan-faults", cause):
        yield


def _cause_all(
    network: Network,
    rehearsal: Rehearsal,
    folder: Path,
    kill: Callable[[int], None],
    over: threading.Event,
) -> None:
    began = _await_ready(network, rehearsal, folder, over)
    left = list(rehearsal.faults)
    while left:
        passed_s = time.monotonic() - began
        steps = count_steps(folder) if any(fault.after_step for fault in left) else 0
        due = [x for x in left if (steps >= x.after_step if x.after_step else passed_s >= x.at_s)]
        for fault in due:
            _cause(network, fault, kill)
            counted = f", after step {steps}" if fault.after_step else ""
            rehearsal.say(f"{time.monotonic() - began:.2f} s: {fault}{counted}")
            left.remove(fault)
        waits_s = [began + x.at_s - time.monotonic() for x in left if not x.after_step]
        if any(fault.after_step for fault in left):
            waits_s.append(_STEP_POLL_S)
        if left and over.wait(max(0.0, min(waits_s))):
            missed = ", ".join(f"{fault} {fault.when}" for fault in left)
            rehearsal.say(f"the ranks have ended before these faults: {missed}")
            return


def _await_ready(
    network: Network, rehearsal: Rehearsal, folder: Path, over: threading.Event
) -> float:
    """Return when all ranks were ready, or when that is no longer waited for, by time.monotonic."""
    ranks = set(range(len(network.blueprint.home)))
    latest = time.monotonic() + _READY_S
    # A program of which one rank announces it does so on all of them, however slow the host is.
    while not (ready := list_ready(folder)) >= ranks and (ready or time.monotonic() < latest):
        if over.wait(_POLL_S):
            break
    began = time.monotonic()
    if not over.is_set():
        when = "all ranks are ready" if ready >= ranks else f"the ranks run for {_READY_S:g} s"
        rehearsal.say(f"{when}; times of faults count from now")
    return began


def _cause(network: Network, fault: Injection, kill: Callable[[int], None]) -> None:
    if fault.kind == "kill":
        kill(fault.rank)
    for link in fault.links:
        if fault.kind == "slow":
            network.scale_rates(*link, fault.factor)
        else:
            (network.cut if fault.kind == "cut" else network.mend)(*link)
