"""Central updates: at one worker, or at servers of shares, synchronous or asynchronous."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import accumulate, pairwise
from threading import Lock
from typing import TYPE_CHECKING

import torch

from topoplan import ExecutionError, InputError, Topology

from ..base import Averaging, Setting, System
from ..buckets import Flats, average_in_order
from ..point_to_point import Message, PointToPoint

if TYPE_CHECKING:  # its solver loads slowly, and rank 0 alone needs it
    from ..server_shares import Shares

# Announced to helpers: another step follows, or training has ended.
GO, END = 1, 0
# Where a server's part of a bucket begins and ends, in elements.
Part = tuple[int, int]


def divide_buckets(
    setting: Setting, servers: Sequence[int]
) -> tuple[Shares, list[dict[int, Part]]]:
    """Return the best shares of `servers` (ranks), and by bucket each server's part, by its rank.

    Without a topology, equal hosts on one switch are assumed. Collective.
    """

    def find() -> Shares:
        from ..server_shares import find_shares

        topology, device = _map_devices(setting)
        return find_shares(
            topology, [device[w] for w in setting.workers], [device[s] for s in servers]
        )

    shares = setting.compute_on_rank_0(find)
    return shares, [
        dict(zip(servers, divide(shares.share, numel), strict=True)) for numel, _ in setting.layout
    ]


def _map_devices(setting: Setting) -> tuple[Topology, dict[int, str]]:
    """Return the topology, and the id of each rank's device in it."""
    workers, helpers, topology = setting.workers, setting.helpers, setting.topology
    named: Sequence[str] = setting.helper_devices
    if topology is None:
        from ..server_shares import equal_hosts

        topology = equal_hosts(len(workers), len(helpers))
        named = [d.id for d in topology.devices if d.kind == "cpu"]
    gpus = topology.ranks
    if not named and len(gpus) == len(workers) + len(helpers):
        return topology, dict(enumerate(gpus))
    if len(gpus) == len(workers) and len(named) == len(helpers):
        return topology, dict(zip((*workers, *helpers), (*gpus, *named), strict=True))
    raise InputError(
        f"topology {topology.name!r} has {len(gpus)} GPUs, for {len(workers)} workers and "
        f"{len(helpers)} helpers with {len(named)} "
        "helper_devices; expected a GPU for each worker and a helper device for "
        "each helper, or a GPU for all"
    )


def divide(shares: Sequence[Fraction], numel: int) -> list[Part]:
    """Return each server's part [begin, end) of `numel` elements; the shares sum up to 1."""
    # Exact fractions, so that all ranks cut at the same elements and the last part ends at `numel`.
    return list(pairwise(int(end * numel) for end in accumulate(shares, initial=Fraction(0))))


def allocate_parts(setting: Setting, parts: Sequence[dict[int, Part]]) -> Flats:
    """Return an uninitialized tensor for this rank's part of each bucket.

    `parts` has the parts of each bucket by rank, as from `divide_buckets`.
    """
    return [
        torch.empty(
            part[setting.rank][1] - part[setting.rank][0],
            dtype=getattr(torch, dtype),
            device=setting.device,
        )
        for part, (_, dtype) in zip(parts, setting.layout, strict=True)
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
        self.shares, self._parts = divide_buckets(setting, self.servers)
        self._sums = allocate_parts(setting, self._parts)
        # Room for every worker's push of this rank's part, since all may arrive at once.
        self._pushed = [{w: torch.empty_like(total) for w in self.others} for total in self._sums]
        # Helpers cannot know when training ends, so the first worker tells them before every step.
        self._word = torch.zeros(1, dtype=torch.int64, device=setting.device)

    def average(self, flats: Flats) -> None:
        """Push parts to the servers and pull their means."""
        self._announce(GO)
        self._carry_out(flats)

    def report(self) -> dict[str, object]:
        """Return `shares` (fraction of the gradients by rank) and the busiest link's `s_per_GB`."""
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
            self.p2p.exchange(receives=[(self.setting.first, self._word)])
            if self._word.item() == END:
                return
            self._carry_out(None)
            self.steps += 1

    def _carry_out(self, flats: Flats | None) -> None:
        """Post all pushes of a step at once, and send each mean as soon as it is ready."""
        remote = [self._list_remote(number, flats) for number in range(len(self._parts))]
        pushes = [
            self.p2p.post(sends, list(pushed.items()))
            for sends, pushed in zip(remote, self._pushed, strict=True)
        ]
        replies = []
        # Buckets overlap: the mean of one is sent while pushes of later ones still arrive.
        for number, await_pushes in enumerate(pushes):
            await_pushes()
            self._add(number, flats)
            # The others' means arrive in place of the gradients that have been sent.
            replies.append(
                self.p2p.post([(w, self._sums[number]) for w in self.others], remote[number])
            )
        for await_replies in replies:
            await_replies()
        if flats is not None:
            for part, total, flat in zip(self._parts, self._sums, flats, strict=True):
                flat[slice(*part[self.rank])] = total

    def _list_remote(self, number: int, flats: Flats | None) -> list[Message]:
        """Return the other servers' parts of a bucket; none on a helper, which has no bucket."""
        if flats is None:
            return []
        return [
            (server, flats[number][slice(*part)])
            for server, part in self._parts[number].items()
            if server != self.rank
        ]

    def _add(self, number: int, flats: Flats | None) -> None:
        pushed, part = self._pushed[number], self._parts[number][self.rank]
        if part[0] < part[1]:
            # In rank order, so that the sum has the same bits whatever arrived first.
            average_in_order(
                [
                    pushed[w] if w in pushed or flats is None else flats[number][slice(*part)]
                    for w in self.workers
                ],
                self._sums[number],
            )


class Gather(System):
    """The first worker adds all gradients in rank order, updates, and sends the parameters.

    It sends and receives n - 1 times the model, the others once: its links are the bottleneck.
    """

    name = "gather"
    promise = (
        "replicas bitwise equal after every step; one rank adds and updates, and its links "
        "carry everything"
    )
    source = "torch.nn.DataParallel; Li et al., PyTorch Distributed, VLDB 2020, section 2.2"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._flats = self.buckets.allocate()
        if self.rank == setting.first:
            self.optimizer = setting.make_optimizer(self.buckets.parameters)

    def _advance(self) -> None:
        self.buckets.copy_gradients(self._flats)
        self._average_at_first(self._flats)
        if self.optimizer is not None:
            self.buckets.set_gradients(self._flats)
            self.optimizer.step()
            self.buckets.copy_values(self._flats)
        self._broadcast_first(self._flats)
        if self.optimizer is None:
            self.buckets.set_values(self._flats)


class AsyncParameterServer(System):
    """Parameter servers that apply each worker's gradients at once; no worker waits for another.

    A worker pushes to each helper its part of the gradients and pulls the same part of the updated
    parameters. The staleness of its gradients is the number of other workers' updates since its
    last pull (see `report`); it is not bounded. Each push is one update, so n workers make n times
    as many updates as in a synchronous system.

    The helpers' shares follow from the linear program of the synchronous server. `finish` waits for
    all workers, and all receive the same final parameters. A worker that dies is dropped and listed
    in the helpers' `report()["lost"]`. `serve` raises ExecutionError if all workers are lost, or if
    one is silent for longer than the timeout.
    """

    name = "async-parameter-server"
    promise = (
        "no worker waits for another; every gradient is applied once, at once, and its "
        "staleness is counted"
    )
    source = (
        "Dean et al., Large Scale Distributed Deep Networks (Downpour SGD), NIPS 2012, section 4.1"
    )
    takes_helpers = needs_helpers = True
    only_cpu = "a server receives from whichever worker sends first, and NCCL cannot wait for that"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.shares, self._parts = divide_buckets(setting, setting.helpers)
        self._staleness: list[int] = []
        self._lost: list[int] = []
        if self.is_helper:
            self._receive_parameters()
        else:
            self._send_parameters()

    def report(self) -> dict[str, object]:
        """Return the mean and maximum staleness of this rank's gradients, in updates.

        On helpers, the report also has the number of `updates`, the ranks of `lost` workers, and
        the helper's `share` of the parameters as a fraction.
        """
        out: dict[str, object] = {
            "staleness_mean": sum(self._staleness) / max(1, len(self._staleness)),
            "staleness_max": max(self._staleness, default=0),
        }
        if self.is_helper:
            out |= {
                "updates": self._version,
                "lost": tuple(sorted(self._lost)),
                "share": str(self.shares.share[self.helpers.index(self.rank)]),
            }
        return out

    @property
    def bytes_sent(self) -> int:
        """Payload bytes that this rank has sent to others, over all of its connections."""
        return self.p2p.bytes_sent + sum(p2p.bytes_sent for p2p in self._p2p_by_worker.values())

    def _send_parameters(self) -> None:
        self._p2p_by_worker: dict[int, PointToPoint] = {}
        self._flats, self._fresh = self.buckets.allocate(), self.buckets.allocate()
        self._word = torch.zeros(1, dtype=torch.int64)
        self._staleness_from = {h: torch.zeros(1, dtype=torch.int64) for h in self.helpers}
        if self.rank == self.setting.first:
            self.buckets.copy_values(self._flats)
            self.p2p.exchange(
                sends=[(h, part) for h in self.helpers for part in self._parts_of(h, self._flats)]
            )
            self.p2p.bytes_sent = 0  # these are not of a step

    def _advance(self) -> None:
        self.buckets.copy_gradients(self._flats)
        self._push_and_pull(GO)
        self._staleness.append(max(int(x.item()) for x in self._staleness_from.values()))

    def _end(self) -> None:
        self._push_and_pull(END)

    def _push_and_pull(self, word: int) -> None:
        """Send GO with the gradients, or END alone, to every helper; receive the parameters."""
        self._word.fill_(word)
        sends = [(h, self._word) for h in self.helpers]
        if word == GO:
            sends += [(h, part) for h in self.helpers for part in self._parts_of(h, self._flats)]
        receives = list(self._staleness_from.items())
        receives += [(h, part) for h in self.helpers for part in self._parts_of(h, self._fresh)]
        self.p2p.exchange(sends, receives)
        self.buckets.set_values(self._fresh)

    def _parts_of(self, helper: int, flats: Flats) -> Flats:
        return [flat[slice(*part[helper])] for flat, part in zip(flats, self._parts, strict=True)]

    def _receive_parameters(self) -> None:
        """Receive the first worker's parameters as flat parts and create an optimizer for them."""
        parameters = allocate_parts(self.setting, self._parts)
        self.p2p.exchange(receives=[(self.setting.first, flat) for flat in parameters])
        self._parameters = [torch.nn.Parameter(flat) for flat in parameters]
        # A helper whose share is 0 has nothing to update.
        trained = [p for p in self._parameters if p.numel()]
        self.optimizer = self.setting.make_optimizer(trained) if trained else None
        self._lock, self._version = Lock(), 0
        self._p2p_by_worker = {w: PointToPoint(self.setting.group) for w in self.workers}

    def _serve(self) -> None:
        # A thread for each worker, so that each is served as soon as its message is there.
        with ThreadPoolExecutor(len(self.workers), "topoplan-server") as pool:
            failures = [
                error for error in pool.map(self._attend, self.workers) if error is not None
            ]
        # Only now, as every worker gets the same final parameters.
        for worker in self.workers:
            if worker not in self._lost:
                try:
                    self._reply(worker, 0, [p.detach() for p in self._parameters])
                except ExecutionError as error:
                    self._lost.append(worker)
                    failures.append(error)
        if len(self._lost) == len(self.workers):
            raise ExecutionError(
                f"rank {self.rank}, a helper: all workers are lost; the first error: {failures[0]}"
            )

    def _attend(self, worker: int) -> ExecutionError | None:
        """Serve one worker until it sends END; return the error if the worker is lost."""
        word, pulled = torch.zeros(1, dtype=torch.int64), 0
        pushed, fresh = (
            [torch.empty_like(p, requires_grad=False) for p in self._parameters] for _ in range(2)
        )
        p2p = self._p2p_by_worker[worker]
        try:
            while True:
                p2p.exchange(receives=[(worker, word)])
                if word.item() == END:
                    return None
                p2p.exchange(receives=[(worker, part) for part in pushed])
                # The version must be that of the parameters copied to `fresh`.
                with self._lock:
                    staleness = self._update(pushed, fresh, pulled)
                    pulled = self._version
                self._reply(worker, staleness, fresh)
        except ExecutionError as error:
            self._lost.append(worker)
            return error

    @torch.no_grad()
    def _update(self, gradients: Flats, fresh: Flats, pulled: int) -> int:
        """Update the parameters, copy them to `fresh`, and return the gradients' staleness.

        The caller must hold the lock. `pulled` is the version that the worker last pulled.
        """
        staleness = self._version - pulled
        self._staleness.append(staleness)
        for p, gradient in zip(self._parameters, gradients, strict=True):
            p.grad = gradient  # not a copy: the next push arrives after the update
        if self.optimizer is not None:
            self.optimizer.step()
        for p, copy in zip(self._parameters, fresh, strict=True):
            copy.copy_(p)
        self._version += 1
        return staleness

    def _reply(self, worker: int, staleness: int, parameters: Flats) -> None:
        self._p2p_by_worker[worker].exchange(
            sends=[
                (worker, flat)
                for flat in (torch.tensor([staleness], dtype=torch.int64), *parameters)
            ]
        )
