"""The asynchronous parameter server: helpers hold the parameters and apply each worker's gradients as they come."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import torch
from torch import nn

from ....topo.errors import ExecutionError
from ..base import Setting, System
from ..buckets import Flats
from ..mail import Mail
from .server import END, GO, cuts, found_shares


class AsyncParameterServer(System):
    """Nobody waits for another worker. A worker pushes each helper its part of the gradients and gets that part of the
    parameters back, as they are after the helper made the update; other workers' updates may have come between. How many
    did, since this worker last pulled, is the staleness of its gradients (`report()`); nothing bounds it. Each push is an
    update with the optimizer as it was made: n workers make n times as many as a synchronous system.

    The helpers' shares follow from the linear programme of the synchronous server. `finish` waits for all workers, and
    all get the same final parameters. A worker that dies is left out, and is in the helpers' `report()["lost"]`; when all are
    lost, or one is silent for longer than the timeout, `serve` raises ExecutionError.
    """

    name = "async-parameter-server"
    promise = "no worker waits for another; every gradient is applied once, at once, and its staleness is counted"
    source = "Dean et al., Large Scale Distributed Deep Networks (Downpour SGD), NIPS 2012, section 4.1"
    takes_helpers = needs_helpers = True
    only_cpu = "a server takes messages from whichever worker is first, which NCCL has no way to wait for"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.shares = found_shares(setting, setting.helpers)
        parts = [cuts(self.shares.share, numel) for numel, _ in setting.layout]
        self._parts = [dict(zip(setting.helpers, cut, strict=True)) for cut in parts]
        self._staleness: list[int] = []
        self._lost: list[int] = []
        if self.is_helper:
            self._take_over()
        else:
            self._hand_over()

    def report(self) -> dict[str, object]:
        """Of a worker: the staleness of its gradients. Of a helper: also `updates` made, `lost` workers, and its share."""
        seen = self._staleness
        out: dict[str, object] = {
            "staleness_mean": sum(seen) / len(seen) if seen else 0.0,
            "staleness_max": max(seen, default=0),
        }
        if self.is_helper:
            share = self.shares.share[self.helpers.index(self.rank)]
            out |= {"updates": self._version, "lost": tuple(sorted(self._lost)), "share": str(share)}
        return out

    @property
    def bytes_sent(self) -> int:
        """See System."""
        return self.mail.bytes_sent + sum(mail.bytes_sent for mail in self._mails.values())

    # -- workers -------------------------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        self._mails: dict[int, Mail] = {}
        self._flats, self._fresh = self.buckets.empty(), self.buckets.empty()
        self._word = torch.zeros(1, dtype=torch.int64)
        self._said = {helper: torch.zeros(1, dtype=torch.int64) for helper in self.helpers}
        if self.rank == self.setting.first:
            self.buckets.values(self._flats)
            self.mail.exchange(sends=[(h, part) for h in self.helpers for part in self._of(h, self._flats)])
            self.mail.bytes_sent = 0

    def _advance(self) -> None:
        self.buckets.gradients(self._flats)
        self._trade(GO)
        self._staleness.append(max(int(said.item()) for said in self._said.values()))

    def _end(self) -> None:
        self._trade(END)

    def _trade(self, word: int) -> None:
        """A word to every helper, with gradients if it is GO; parameters come back."""
        self._word.fill_(word)
        sends = [(h, self._word) for h in self.helpers]
        if word == GO:
            sends += [(h, part) for h in self.helpers for part in self._of(h, self._flats)]
        receives = list(self._said.items())
        receives += [(h, part) for h in self.helpers for part in self._of(h, self._fresh)]
        self.mail.exchange(sends, receives)
        self.buckets.set_values(self._fresh)

    def _of(self, helper: int, flats: Flats) -> Flats:
        """The parts of buckets that a helper holds."""
        return [flat[slice(*part[helper])] for flat, part in zip(flats, self._parts, strict=True)]

    # -- helpers -------------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """The parameters of the first worker, as flat parts; an optimizer of one's own for them."""
        lengths = [part[self.rank][1] - part[self.rank][0] for part in self._parts]
        dtypes = [getattr(torch, name) for _, name in self.setting.layout]
        held = [torch.empty(length, dtype=dtype) for length, dtype in zip(lengths, dtypes, strict=True)]
        self.mail.exchange(receives=[(self.setting.first, flat) for flat in held])
        self._held = [nn.Parameter(flat) for flat in held]
        whole = [p for p in self._held if p.numel()]
        self.optimizer = self.setting.make_optimizer(whole) if whole else None
        self._lock, self._version = Lock(), 0
        self._mails = {w: Mail(self.setting.group) for w in self.workers}

    def _serve(self) -> None:
        with ThreadPoolExecutor(len(self.workers), "topoplan-server") as pool:
            attended = [pool.submit(self._attend, worker) for worker in self.workers]
        failures = [failure for future in attended if (failure := future.result()) is not None]
        final = [p.detach() for p in self._held]
        for worker in self.workers:
            if worker not in self._lost:
                try:
                    self._reply(worker, 0, final)
                except ExecutionError as error:
                    self._lost.append(worker)
                    failures.append(error)
        if len(self._lost) == len(self.workers):
            raise ExecutionError(f"rank {self.rank}, a helper: all workers are lost; the first: {failures[0]}")

    def _attend(self, worker: int) -> ExecutionError | None:
        """Take one worker's pushes until it ends; what went wrong if it was lost."""
        word, pulled = torch.zeros(1, dtype=torch.int64), 0
        pushed, fresh = ([torch.empty_like(p, requires_grad=False) for p in self._held] for _ in range(2))
        mail = self._mails[worker]
        try:
            while True:
                mail.exchange(receives=[(worker, word)])
                if word.item() == END:
                    return None
                mail.exchange(receives=[(worker, part) for part in pushed])
                with self._lock:
                    staleness = self._update(pushed, fresh, pulled)
                    pulled = self._version
                self._reply(worker, staleness, fresh)
        except ExecutionError as error:
            self._lost.append(worker)
            return error

    @torch.no_grad()
    def _update(self, gradients: Flats, fresh: Flats, pulled: int) -> int:
        """One update, under the lock: how stale the gradients were; `fresh` becomes the parameters after it."""
        staleness = self._version - pulled
        self._staleness.append(staleness)
        for p, gradient in zip(self._held, gradients, strict=True):
            p.grad = gradient
        if self.optimizer is not None:
            self.optimizer.step()
        for p, copy in zip(self._held, fresh, strict=True):
            copy.copy_(p)
        self._version += 1
        return staleness

    def _reply(self, worker: int, staleness: int, parameters: Flats) -> None:
        said = torch.tensor([staleness], dtype=torch.int64)
        self._mails[worker].exchange(sends=[(worker, said), *((worker, part) for part in parameters)])
