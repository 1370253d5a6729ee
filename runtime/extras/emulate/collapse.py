"""Switches that collapse: two flows at once through one slow all its links down.

This year's boards do that: two GPUs of a switch that write to two CPU roots get 2.7 GB/s together
where one alone has 37. A thread reads the counters of the switch's interfaces every few
milliseconds, and sets the rates of its links. So a collapse begins and ends some milliseconds late,
and messages have to take much longer than that.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from ....topo.errors import ExecutionError, InputError
from ....topo.exact import parse_fraction
from .beside import run_beside
from .blueprint import Blueprint
from .network import BURST_BYTES, MTU, Network, describe_bucket, die_with_parent

# Seconds between two looks at the counters.
_LOOK_S = 0.002
# Bytes beyond headers and acknowledgements, of _HEADER_BYTES a packet, by which an interface
# carries data between two looks.
_DATA_BYTES, _HEADER_BYTES = 2048, 100
# Looks in a row that see several flows before a switch collapses: one look may see the end of one
# transfer and the beginning of the next.
_LOOKS = 2
# A collapsed switch mends once fewer than two flows were seen for so long: its packets are rare.
_CALM_S = 0.1
# Bytes that a collapsed link may send at once: a packet with its header, and nothing for free.
_BURST_BYTES = 2 * MTU
# Bits per second; tc takes no less.
_LEAST_bps = 8000


@dataclass
class Collapse:
    """A device whose links have `factor` of their rates while several flows run through it.

    As many flows are counted as there are links over which data enters, or leaves, if those are
    more. `times` and `seconds` say how often, and how long, it has collapsed.
    """

    device: str
    factor: Fraction
    times: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.device} collapsed {self.times} times, for {self.seconds:.2f} s in all"


def parse_collapses(texts: Sequence[str], built: Blueprint) -> list[Collapse]:
    """Return what texts such as "plx0=0.05" ask for.

    Raise InputError unless each names another device of the emulated machine, no GPU, and a factor
    between 0 and 1.
    """
    hosts = {built.devices[device] for device in built.home}
    found: dict[str, Collapse] = {}
    for text in texts:
        device, _, number = text.rpartition("=")
        try:
            factor = parse_fraction(number)
        except ValueError:
            factor = Fraction(0)
        if device not in built.devices or device in hosts or device in found or not 0 < factor < 1:
            others = [x for x in built.devices if x not in hosts]
            raise InputError(
                f"{text!r}: expected a device and a factor of its rates below 1, such as "
                f"{others[0] if others else 'plx0'}=0.05; devices: {', '.join(others[:6])}",
                parameter="collapse",
            )
        found[device] = Collapse(device, factor)
    return list(found.values())


@dataclass
class _Watched:
    """A device that may collapse: its counters, the rates of its links, and what sets them."""

    collapse: Collapse
    counters: Path
    rates: dict[str, int]
    set_rates: subprocess.Popen[str]
    before: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    seen: dict[tuple[str, str], float] = field(default_factory=dict)
    looks: int = 0
    since: float | None = None

    def look(self, now: float) -> None:
        """Look at the counters `now` (time.monotonic), and let the device collapse or mend.

        Raise ExecutionError if the tc that sets its rates has ended; so does `mend`.
        """
        counts = read_counters(self.counters.read_text("ascii"), self.rates)
        busy = [key for key, count in counts.items() if _has_data(self.before.get(key), count)]
        self.before = counts
        self.seen |= dict.fromkeys(busy, now)
        if self.since is None:
            self.looks = self.looks + 1 if _count_flows(busy) > 1 else 0
            if self.looks >= _LOOKS:
                self.since = now
                self._scale(self.collapse.factor, _BURST_BYTES)
        elif _count_flows([key for key, at in self.seen.items() if now - at < _CALM_S]) < 2:
            self.mend(now)

    def mend(self, now: float) -> None:
        """Let the device have its own rates again, if it has collapsed."""
        if self.since is not None:
            self.collapse.times += 1
            self.collapse.seconds += now - self.since
            self.looks, self.since = 0, None
            self._scale(Fraction(1), BURST_BYTES)

    def _scale(self, factor: Fraction, burst_bytes: int) -> None:
        lines = (
            describe_bucket(name, max(_LEAST_bps, round(rate * factor)), burst_bytes)
            for name, rate in self.rates.items()
        )
        assert self.set_rates.stdin is not None
        try:
            self.set_rates.stdin.write("".join(f"{line}\n" for line in lines))
            self.set_rates.stdin.flush()
        except BrokenPipeError:
            raise ExecutionError(
                f"{self.collapse.device}: tc, which sets the rates of its links, has ended"
            ) from None


def read_counters(
    text: str, interfaces: Sequence[str] | dict[str, int]
) -> dict[tuple[str, str], tuple[int, int]]:
    """Return bytes and packets of interfaces, by name and "in" or "out", from /proc/net/dev."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        if name.strip() in interfaces:
            numbers = [int(x) for x in rest.split()]
            found[name.strip(), "in"] = numbers[0], numbers[1]
            found[name.strip(), "out"] = numbers[8], numbers[9]
    return found


def _has_data(before: tuple[int, int] | None, now: tuple[int, int]) -> bool:
    if before is None:
        return False
    return now[0] - before[0] - _HEADER_BYTES * (now[1] - before[1]) > _DATA_BYTES


def _count_flows(busy: Sequence[tuple[str, str]]) -> int:
    """Return the least number of flows by which these interfaces carry data in these directions."""
    ways = [way for _, way in busy]
    return max(ways.count("in"), ways.count("out"))


@contextmanager
def collapsing(
    network: Network, collapses: Sequence[Collapse], say: Callable[[str], None]
) -> Iterator[None]:
    """Let devices of an emulated machine collapse while the context lasts, and say how often."""
    if not collapses:
        yield
        return
    watched = [_watch(network, collapse) for collapse in collapses]

    def look(over: threading.Event) -> None:
        try:
            while not over.wait(_LOOK_S):
                for each in watched:
                    each.look(time.monotonic())
            for each in watched:
                each.mend(time.monotonic())
        finally:
            for each in watched:
                each.set_rates.kill()
                each.set_rates.wait()

    with run_beside("topoplan-collapse", look):
        yield
    say("; ".join(map(str, collapses)))


def _watch(network: Network, collapse: Collapse) -> _Watched:
    built = network.blueprint
    device = built.devices.index(collapse.device)
    rates = {
        f"to{cable.other(device)}": rate
        for cable in built.cables
        if device in (cable.a, cable.b) and (rate := cable.rate_out_of(device)) is not None
    }
    # One process for all changes: starting one takes as long as several looks.
    set_rates = subprocess.Popen(
        [*network.enter(device), "tc", "-batch", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=die_with_parent,
    )
    counters = Path(network.namespace_of(device)).parents[1] / "net" / "dev"
    return _Watched(collapse, counters, rates, set_rates)
