"""The synchronous parameter server: servers add up a share of the gradients each, spare hosts without GPUs among them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import torch

from ....topo.errors import InputError
from ....topo.graph import Topology
from ..base import Averaging, Setting
from ..buckets import Flats, mean_of
from ..mail import Posted

if TYPE_CHECKING:  # its solver loads slowly, and rank 0 alone needs it
    from ..shares import Shares

GO, END = 1, 0
Cut = tuple[int, int]


def found_shares(setting: Setting, servers: Sequence[int]) -> Shares:
    """The shares of `servers` (ranks) on the setting's topology, or, without one, on equal hosts at one switch; found on
    rank 0 and told to all.
    """

    def find() -> Shares:
        from ..shares import server_shares

        topology, device = _devices(setting)
        return server_shares(topology, [device[w] for w in setting.workers], [device[s] for s in servers])

    return setting.told(find)


def _devices(setting: Setting) -> tuple[Topology, dict[int, str]]:
    """The topology, and which of its devices each rank is."""
    workers, helpers, topology = setting.workers, setting.helpers, setting.topology
    if topology is None:
        from ..shares import equal_hosts

        topology = equal_hosts(len(workers), len(helpers))
        names = [d.id for d in topology.devices if d.kind == "cpu"]
        return topology, dict(zip((*workers, *helpers), (*topology.ranks, *names), strict=True))
    gpus, named = topology.ranks, setting.helper_devices
    if not named and len(gpus) == len(workers) + len(helpers):
        return topology, dict(enumerate(gpus))
    if len(gpus) == len(workers) and len(named) == len(helpers):
        return topology, dict(zip((*workers, *helpers), (*gpus, *named), strict=True))
    raise InputError(
        f"topology {topology.name!r} has {len(gpus)} GPUs, for {len(workers)} workers and {len(helpers)} helpers with "
        f"{len(named)} helper_devices; expected a GPU for each worker and a helper device for each helper, or a GPU for all"
    )


def cuts(shares: Sequence[Fraction], numel: int) -> list[Cut]:
    """Where each server's part of `numel` elements begins and ends."""
    out, before = [], Fraction(0)
    for share in shares:
        out.append((int(before * numel), int((before + share) * numel)))
        before += share
    return out


class ParameterServer(Averaging):
    """Every worker pushes each server its part of the gradients; the server adds them in rank order, divides, and sends the
    mean of its part back. Servers are all workers and all helpers; how large the parts are follows from a linear
    programme over the links (`report()["shares"]`, by rank). Without helpers this is one scatter and one gather.

    A helper waits for the first worker's word before each step, at most the timeout.
    """

    name = "parameter-server"
    promise = "replicas bitwise equal after every step; the busiest link carries the least that any division among servers can"
    source = "Jiang et al., A Unified Architecture for Accelerating Distributed DNN Training (BytePS), OSDI 2020, section 4.1"
    takes_helpers = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.servers = (*setting.workers, *setting.helpers)
        self.shares = found_shares(setting, self.servers)
        parts = [cuts(self.shares.share, numel) for numel, _ in setting.layout]
        self._parts = [dict(zip(self.servers, cut, strict=True)) for cut in parts]
        dtypes = [getattr(torch, name) for _, name in setting.layout]
        self._inbox = [
            {
                w: torch.empty(part[self.rank][1] - part[self.rank][0], dtype=dtype, device=setting.device)
                for w in self.others
            }
            for part, dtype in zip(self._parts, dtypes, strict=True)
        ]
        self._sums = [
            torch.empty(part[self.rank][1] - part[self.rank][0], dtype=dtype, device=setting.device)
            for part, dtype in zip(self._parts, dtypes, strict=True)
        ]
        self._word = torch.zeros(1, dtype=torch.int64, device=setting.device)

    def average(self, flats: Flats) -> None:
        """See Averaging."""
        self._tell(GO)
        self._round(flats)

    def report(self) -> dict[str, object]:
        """`shares`: how much of the gradients each rank adds up; `s_per_GB`: how long the busiest link takes for 1 GB."""
        return {
            "shares": {rank: str(share) for rank, share in zip(self.servers, self.shares.share, strict=True)},
            "s_per_GB": float(self.shares.s_per_GB),
        }

    def _end(self) -> None:
        self._tell(END)

    def _tell(self, word: int) -> None:
        """The first worker tells the helpers whether there is another step."""
        if self.rank == self.setting.first:
            self._word.fill_(word)
            self.mail.exchange(sends=[(helper, self._word) for helper in self.helpers])

    def _serve(self) -> None:
        while True:
            self.mail.begin(f"{self.name}, step {self.steps}")
            self.mail.exchange(receives=[(self.setting.first, self._word)])
            if self._word.item() == END:
                return
            self._round(None)
            self.steps += 1

    def _round(self, flats: Flats | None) -> None:
        """One step, bucket by bucket: all pushes under way at once, answers as soon as a sum is there."""
        pushes = [self._push(number, flats) for number in range(len(self._parts))]
        answers = []
        for number, push in enumerate(pushes):
            push.wait()
            self._add(number, flats)
            answers.append(self._answer(number, flats))
        for answer in answers:
            answer.wait()
        if flats is not None:
            for part, total, flat in zip(self._parts, self._sums, flats, strict=True):
                flat[slice(*part[self.rank])] = total

    def _push(self, number: int, flats: Flats | None) -> Posted:
        sends = [] if flats is None else [(s, flats[number][slice(*cut)]) for s, cut in self._elsewhere(number)]
        return self.mail.post(sends, list(self._inbox[number].items()))

    def _add(self, number: int, flats: Flats | None) -> None:
        inbox, cut = self._inbox[number], self._parts[number][self.rank]
        if cut[0] < cut[1]:
            parts = [inbox[w] if w in inbox or flats is None else flats[number][slice(*cut)] for w in self.workers]
            mean_of(parts, self._sums[number])

    def _answer(self, number: int, flats: Flats | None) -> Posted:
        """Means go out, and others' come in over what was pushed (which has been sent)."""
        receives = [] if flats is None else [(s, flats[number][slice(*cut)]) for s, cut in self._elsewhere(number)]
        return self.mail.post([(w, self._sums[number]) for w in self.others], receives)

    def _elsewhere(self, number: int) -> list[tuple[int, Cut]]:
        return [(s, cut) for s, cut in self._parts[number].items() if s != self.rank]
