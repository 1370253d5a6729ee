"""Collect the facts about the network ports of a launch's hosts, and test what joins them.

One rank of each host does the tests (handshake.py). The ranks exchange facts in a store, which may
be reached over another network than the one for data. The facts (FabricFacts) are each host's
ports, the multicasts (hellos) that each port received, which port answered a connection to each
address, and the rates of measured flows.
"""

import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
from torch._C._distributed_c10d import PrefixStore, Store

from ....topo.errors import ExecutionError, TopoplanError
from ....topo.extras.cables import (
    FabricFacts,
    Flow,
    Hello,
    HostFacts,
    PortAnswer,
    find_bundles,
    find_segments,
    list_data_segments,
)
from ....topo.extras.cables.facts import agree_on_management
from ...ranks.machine import name_boot, name_host
from ...ranks.store import put, take
from .handshake import Handshake
from .ports import describe_host
from .rounds import FlowKey, plan_rounds

# Time of one measured flow: a cable of 100 Mbit/s carries 2.5 MB, many times its bursts.
FLOW_s = 0.2
# Port numbers of the sockets, below those that systems give to clients.
_NUMBERS = range(20_000, 32_000)
# Polling interval of the store: a poll takes some 70 us of a core.
_POLL_s = 0.002


@dataclass(frozen=True)
class PortLaunch:
    """A launch as one of its ranks sees it.

    `store` is shared by all `ranks` ranks, of which this is number `rank`. `meeting` is the IP
    address of the store's host: its network is for the rendezvous, not for data. `timeout` limits
    each wait.
    """

    store: Store
    rank: int
    ranks: int
    meeting: str
    timeout: timedelta


def collect_facts(
    launch: PortLaunch, *, is_wanted: Callable[[FabricFacts], bool] = bool
) -> FabricFacts:
    """Return the facts about the hosts' ports, the same on every rank. Collective.

    `is_wanted` is given what the hosts say of themselves; ports are only tested against each other
    if it returns True. Raise ExecutionError if a rank does not answer in time, or a host cannot
    list its ports.
    """
    store = PrefixStore("topoplan/fabric", launch.store)
    put(store, f"host/of/{launch.rank}", [name_host(), name_boot()])
    try:
        if launch.rank == 0:
            ranks = range(launch.ranks)
            named = [tuple(take(store, f"host/of/{rank}", launch.timeout)) for rank in ranks]
            meeting: dict[str, Any] = {
                "names": _tell_apart(named),
                "key": secrets.token_hex(8),
                "number": random.SystemRandom().choice(_NUMBERS),
            }
            put(store, "meeting", meeting)
        else:
            meeting = take(store, "meeting", launch.timeout)
        names = meeting["names"]
        if names.index(names[launch.rank]) == launch.rank:
            _Leader(launch, store, meeting, is_wanted).run()
        facts = take(store, "facts", launch.timeout)
        with suppress(RuntimeError):  # rank 0 may host the store, and end first
            store.add("done", 1)
            _wait_for_all(store, "done", launch.ranks if launch.rank == 0 else 0, 5.0)
    except TopoplanError:
        raise
    except RuntimeError as error:
        raise ExecutionError(
            f"rank {launch.rank}, finding cables: a rank does not answer within "
            f"{launch.timeout.total_seconds():g} s ({error})"
        ) from error
    if "error" in facts:
        raise ExecutionError(facts["error"])
    return msgspec.convert(facts, FabricFacts)


def _tell_apart(named: Sequence[tuple[str, str]]) -> list[str]:
    """Return a name for the host of each rank, given hostnames, which may be equal, and boots."""
    first = {host: rank for rank, host in reversed([*enumerate(named)])}
    names = [name for name, _ in first]
    return [
        host[0] if names.count(host[0]) == 1 else f"{host[0]}-rank{first[host]}" for host in named
    ]


def _wait_for_all(store: Store, key: str, count: int, seconds: float) -> None:
    """Wait until a counter of the store has come to `count`; RuntimeError after some seconds."""
    ends = time.monotonic() + seconds
    while store.add(key, 0) < count:
        if time.monotonic() > ends:
            raise RuntimeError(f"not all came within {seconds:g} s")
        time.sleep(_POLL_s)


class _Leader:
    """The rank that shakes hands for its host."""

    def __init__(
        self,
        launch: PortLaunch,
        store: Store,
        meeting: dict[str, Any],
        is_wanted: Callable[[FabricFacts], bool],
    ) -> None:
        self.launch, self.store, self.is_wanted = launch, store, is_wanted
        names: Sequence[str] = meeting["names"]
        self.names = list(dict.fromkeys(names))
        self.me = self.names.index(names[launch.rank])
        self.ranks = [
            [rank for rank, name in enumerate(names) if name == host] for host in self.names
        ]
        self.key, self.number = meeting["key"], meeting["number"]

    def run(self) -> None:
        """Shake hands and measure; the first host's leader puts all facts into the store.

        Raise RuntimeError if a host does not answer within the launch's timeout.
        """
        mine: Any
        try:
            mine = msgspec.to_builtins(
                describe_host(self.names[self.me], self.ranks[self.me], self.launch.meeting)
            )
        except TopoplanError as error:
            mine = {"error": f"host {self.names[self.me]}: {error}"}
        rows = self._share("hosts", self._gather("host", mine))
        wrong = [row["error"] for row in rows if "error" in row]
        hosts = () if wrong else agree_on_management(msgspec.convert(rows, tuple[HostFacts, ...]))
        facts = FabricFacts(hosts, key=self.key)
        if not wrong and self.is_wanted(facts):
            facts = self._shake_hands(facts)
        if self.me == 0:
            put(self.store, "facts", {"error": wrong[0]} if wrong else msgspec.to_builtins(facts))

    def _shake_hands(self, facts: FabricFacts) -> FabricFacts:
        """Return, at the first host's leader, the facts with what all hosts heard and measured."""
        with Handshake(facts, self.me, self.number) as handshake:
            self._barrier("serving")
            hellos: list[Hello] = []
            greeting = threading.Thread(target=lambda: hellos.extend(handshake.greet()))
            greeting.start()
            answers = handshake.ask()
            greeting.join()
            heard = msgspec.convert(
                self._gather("heard", msgspec.to_builtins([hellos, answers])),
                list[tuple[tuple[Hello, ...], tuple[PortAnswer, ...]]],
            )
            facts = msgspec.structs.replace(
                facts,
                hellos=tuple(x for hellos, _ in heard for x in hellos),
                answers=tuple(x for _, answers in heard for x in answers),
            )
            return msgspec.structs.replace(facts, rounds=self._measure(facts, handshake))

    def _measure(self, facts: FabricFacts, handshake: Handshake) -> tuple[tuple[Flow, ...], ...]:
        planned: list[list[FlowKey]] = []
        if self.me == 0:
            segments = list_data_segments(find_segments(facts))
            planned = plan_rounds(find_bundles(facts, segments))
        rounds = msgspec.convert(self._share("rounds", planned), list[list[FlowKey]])
        mine: list[list[Flow]] = []
        for number, flows in enumerate([*rounds, []]):
            self._barrier(f"round/{number}")  # all have received the flows of the round before
            if number:
                mine.append(handshake.take_rates(rounds[number - 1]))
            handshake.send_flows(flows, FLOW_s)
        measured = self._gather("rates", msgspec.to_builtins(mine))
        by_round = [[flow for flows in of for flow in flows] for of in zip(*measured, strict=True)]
        return msgspec.convert(by_round, tuple[tuple[Flow, ...], ...])

    def _gather(self, what: str, value: object) -> list[Any]:
        """Return the values of all hosts, by host, at the first host's leader; else nothing."""
        put(self.store, f"{what}/{self.me}", value)
        hosts = range(len(self.names)) if self.me == 0 else ()
        return [take(self.store, f"{what}/{host}", self.launch.timeout) for host in hosts]

    def _share(self, what: str, value: object) -> Any:
        """Return the value of the first host's leader. Collective over the leaders."""
        if self.me == 0:
            put(self.store, what, value)
        return take(self.store, what, self.launch.timeout)

    def _barrier(self, what: str) -> None:
        self.store.add(f"meet/{what}", 1)
        seconds = self.launch.timeout.total_seconds()
        _wait_for_all(self.store, f"meet/{what}", len(self.names), seconds)
