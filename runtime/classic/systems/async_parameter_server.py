"""The asynchronous parameter server: helpers apply each worker's gradients as they arrive."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import torch
from torch import nn

from ....topo.errors import ExecutionError
from ..base import Setting, System
from ..buckets import Flats
from ..point_to_point import PointToPoint
from .parameter_server import END, GO, Part, allocate_parts, divide_buckets, find_server_shares


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
        self.shares = find_server_shares(setting, setting.helpers)
        self._parts: list[dict[int, Part]] = divide_buckets(setting, setting.helpers, self.shares)
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
        self._parameters = [nn.Parameter(flat) for flat in parameters]
        # A helper whose share is 0 has nothing to update.
        trained = [p for p in self._parameters if p.numel()]
        self.optimizer = self.setting.make_optimizer(trained) if trained else None
        self._lock, self._version = Lock(), 0
        # Without faults: a worker that dies is dropped, which must not end the others' calls.
        self._p2p_by_worker = {w: PointToPoint(self.setting.group) for w in self.workers}

    def _serve(self) -> None:
        # A thread for each worker, so that each is served as soon as its message is there.
        with ThreadPoolExecutor(len(self.workers), "topoplan-server") as pool:
            attending = [pool.submit(self._attend, worker) for worker in self.workers]
        failures = [failure for future in attending if (failure := future.result()) is not None]
        # Only now, as every worker gets the same final parameters.
        final = [p.detach() for p in self._parameters]
        for worker in self.workers:
            if worker not in self._lost:
                try:
                    self._reply(worker, 0, final)
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
        flats = [torch.tensor([staleness], dtype=torch.int64), *parameters]
        self._p2p_by_worker[worker].exchange(sends=[(worker, flat) for flat in flats])
