"""The synchronous parameter server: workers and spare hosts each add up a share of the
gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import torch

from ....topo.errors import InputError
from ....topo.graph import Topology
from ..base import Averaging, Setting
from ..buckets import Flats, average_in_order
from ..point_to_point import PendingMessages

if TYPE_CHECKING:  # its solver loads slowly, and rank 0 alone needs it
    from ..server_shares import Shares

GO, END = 1, 0
# Where a server's part of a bucket begins and ends, in elements.
Part = tuple[int, int]


def find_server_shares(setting: Setting, servers: Sequence[int]) -> Shares:
    """Return the best shares of `servers` (ranks) on the topology. Collective.

    The default topology is equal hosts on one switch.
    """

    def find() -> Shares:
        from ..server_shares import find_shares

        topology, device = _map_devices(setting)
        return find_shares(
            topology, [device[w] for w in setting.workers], [device[s] for s in servers]
        )

    return setting.compute_on_rank_0(find)


def _map_devices(setting: Setting) -> tuple[Topology, dict[int, str]]:
    """Return the topology, and the id of each rank's device in it."""
    workers, helpers, topology = setting.workers, setting.helpers, setting.topology
    if topology is None:
        from ..server_shares import equal_hosts

        topology = equal_hosts(len(workers), len(helpers))
        names = [d.id for d in topology.devices if d.kind == "cpu"]
        return topology, dict(zip((*workers, *helpers), (*topology.ranks, *names), strict=True))
    gpus, named = topology.ranks, setting.helper_devices
    if not named and len(gpus) == len(workers) + len(helpers):
        return topology, dict(enumerate(gpus))
    if len(gpus) == len(workers) and len(named) == len(helpers):
        return topology, dict(zip((*workers, *helpers), (*gpus, *named), strict=True))
    raise InputError(
        f"topology {topology.name!r} has {len(gpus)} GPUs, for {len(workers)} workers and "
        f"{len(helpers)} helpers with "
        f"{len(named)} helper_devices; expected a GPU for each worker and a helper device for "
        "each helper, or a GPU for all"
    )


def divide(shares: Sequence[Fraction], numel: int) -> list[Part]:
    """Return each server's part of `numel` elements."""
    out, before = [], Fraction(0)
    for share in shares:
        out.append((int(before * numel), int((before + share) * numel)))
        before += share
    return out


def divide_buckets(
    setting: Setting, servers: Sequence[int], shares: Shares
) -> list[dict[int, Part]]:
    """Return each bucket's parts by the server (rank) that they belong to."""
    return [
        dict(zip(servers, divide(shares.share, numel), strict=True)) for numel, _ in setting.layout
    ]


class ParameterServer(Averaging):
    """Servers that each add up a part of the gradients in rank order and send back the mean.

    All workers and helpers are servers; the sizes of their parts follow from a linear program over
    the links (`report()["shares"]`, by rank). Without helpers this is one scatter and one gather. A
    helper waits at most the timeout for the first worker to announce each step.
    """

    name = "parameter-server"
    promise = (
        "replicas bitwise equal after every step; the busiest link carries the least that any "
        "division among servers can"
    )
    source = (
        "Jiang et al., A Unified Architecture for Accelerating Distributed DNN Training "
        "(BytePS), OSDI 2020, section 4.1"
    )
    takes_helpers = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.servers = (*setting.workers, *setting.helpers)
        self.shares = find_server_shares(setting, self.servers)
        self._parts = divide_buckets(setting, self.servers, self.shares)
        dtypes = [getattr(torch, name) for _, name in setting.layout]
        self._sums = [
            torch.empty(part[self.rank][1] - part[self.rank][0], dtype=dtype, device=setting.device)
            for part, dtype in zip(self._parts, dtypes, strict=True)
        ]
        self._pushed = [{w: torch.empty_like(total) for w in self.others} for total in self._sums]
        # Helpers cannot know when training ends, so the first worker tells them before every step.
        self._word = torch.zeros(1, dtype=torch.int64, device=setting.device)

    def average(self, flats: Flats) -> None:
        """Push parts to the servers and pull their means."""
        self._announce(GO)
        self._average(flats)

    def report(self) -> dict[str, object]:
        """Return `shares`, the part of the gradients per rank, and `s_per_GB` of the busiest
        link.
        """
        return {
            "shares": {
                rank: str(share)
                for rank, share in zip(self.servers, self.shares.share, strict=True)
            },
            "s_per_GB": float(self.shares.s_per_GB),
        }

    def _end(self) -> None:
        self._announce(END)

    def _announce(self, word: int) -> None:
        """Announce to the helpers, from the first worker, whether there is another step."""
        if self.rank == self.setting.first:
            self._word.fill_(word)
            self.p2p.exchange(sends=[(helper, self._word) for helper in self.helpers])

    def _serve(self) -> None:
        while True:
            self.p2p.begin(f"{self.name}, step {self.steps}")
            self.p2p.exchange(receives=[(self.setting.first, self._word)])
            if self._word.item() == END:
                return
            self._average(None)
            self.steps += 1

    def _average(self, flats: Flats | None) -> None:
        """Carry out one step: post all pushes at once, and send each mean as soon as it is
        ready.
        """
        pushes = [self._push(number, flats) for number in range(len(self._parts))]
        replies = []
        # Buckets overlap: the mean of one is on its way while pushes of later ones still arrive.
        for number, push in enumerate(pushes):
            push.wait()
            self._add(number, flats)
            replies.append(self._send_means(number, flats))
        for reply in replies:
            reply.wait()
        if flats is not None:
            for part, total, flat in zip(self._parts, self._sums, flats, strict=True):
                flat[slice(*part[self.rank])] = total

    def _push(self, number: int, flats: Flats | None) -> PendingMessages:
        sends = (
            []
            if flats is None
            else [(s, flats[number][slice(*part)]) for s, part in self._remote_parts(number)]
        )
        return self.p2p.post(sends, list(self._pushed[number].items()))

    def _add(self, number: int, flats: Flats | None) -> None:
        pushed, part = self._pushed[number], self._parts[number][self.rank]
        if part[0] < part[1]:
            # In rank order, so that the sum has the same bits whatever arrived first.
            parts = [
                pushed[w] if w in pushed or flats is None else flats[number][slice(*part)]
                for w in self.workers
            ]
            average_in_order(parts, self._sums[number])

    def _send_means(self, number: int, flats: Flats | None) -> PendingMessages:
        """Send this rank's means; receive the others' in place of the gradients already sent."""
        receives = (
            []
            if flats is None
            else [(s, flats[number][slice(*part)]) for s, part in self._remote_parts(number)]
        )
        return self.p2p.post([(w, self._sums[number]) for w in self.others], receives)

    def _remote_parts(self, number: int) -> list[tuple[int, Part]]:
        return [(s, part) for s, part in self._parts[number].items() if s != self.rank]
