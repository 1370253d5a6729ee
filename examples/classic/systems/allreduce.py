"""Average gradients by an allreduce per bucket: a plan's, a ring, hierarchical, stock, or 8-bit."""

import json
from typing import ClassVar

import torch
import torch.distributed as dist

import topoplan
from topoplan import Communicator, InputError, Plan, Topology

from ..base import Averaging, Setting
from ..buckets import Flats, dequantize, quantize, quantized_bytes
from ..point_to_point import explain_failure

_SYNTHESIS_S = 20.0  # chosen: the other ranks wait meanwhile, by default at most 300 s


def count_ring_bytes(ranks: int, size_bytes: int) -> int:
    """Return the bytes that each rank sends in a ring allreduce of a buffer of `size_bytes`.

    That is gloo's algorithm.
    """
    return 2 * (ranks - 1) * size_bytes // ranks


class Planned(Averaging):
    """Allreduce by a plan through a Communicator, which chooses a schedule per size by `choose`.

    "race" uses the stock allreduce for sizes at which it is faster; `report()["schedules"]` lists
    the schedules used.
    """

    name = "plan"
    promise = (
        "replicas bitwise equal after every step; the schedules are verified, and their "
        "bandwidth has a proved bound"
    )
    source = (
        "this package; Cai et al., Synthesizing Optimal Collective Algorithms (SCCL), PPoPP "
        "2021, for the model"
    )
    takes_plan = True
    strategy: ClassVar[str] = "auto"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._communicator = Communicator(
            setting.plan if setting.plan is not None else self._find_plan(setting),
            setting.group,
            setting.timeout,
            # A race could replace this system's strategy by stock.
            setting.choose if self.strategy == "auto" else "model",
            # Like all other systems: they are compared by the messages that they send.
            executor="point-to-point",
        )
        self._check_plan(self._communicator.plan)
        self._bytes_before, self._stock_bytes = self._communicator.wire_bytes, 0

    @property
    def bytes_sent(self) -> int | None:
        """Payload bytes that this rank has sent, races included.

        None if a stock allreduce other than gloo's, which does not count them, won a race.
        """
        if self._stock_bytes and self.p2p.batched:
            return None
        return self._communicator.wire_bytes - self._bytes_before + self._stock_bytes

    def average(self, flats: Flats) -> None:
        """Allreduce each bucket."""
        for flat in flats:
            self._communicator.allreduce(flat.div_(len(self.workers)))
            choice = self._communicator.choice(flat.nbytes)
            if choice is not None and choice.schedule is None:
                self._stock_bytes += count_ring_bytes(len(self.workers), flat.nbytes)

    def report(self) -> dict[str, object]:
        """Return `schedules`: the label of the schedule in use by bucket size in bytes."""
        return {
            "schedules": {
                size: choice.label
                for size in sorted({flat.nbytes for flat in self._flats})
                if (choice := self._communicator.choice(size)) is not None
            }
        }

    def _find_plan(self, setting: Setting) -> Plan:
        """Synthesize a plan by this system's strategy for the topology; return it on all ranks.

        Rank 0 does the synthesis. Collective.
        """

        def synthesize_as_text() -> str:
            topology = setting.topology or self._default_topology(setting)
            setting.check_gpus(topology)
            plan = topoplan.synthesize(
                "allreduce", topology, self.strategy, time_limit_s=_SYNTHESIS_S
            )
            return json.dumps(plan.to_json())

        return Plan.loads(setting.compute_on_rank_0(synthesize_as_text), self.name)

    def _default_topology(self, setting: Setting) -> Topology:
        raise InputError(f"{self.name} needs a plan, or a topology to make one for")

    def _check_plan(self, plan: Plan) -> None:
        if plan.collective.name != "allreduce":
            raise InputError(
                f"{self.name} needs a plan for allreduce, this one is for {plan.collective.name}"
            )
        for schedule in plan.schedules:
            if self.strategy not in ("auto", schedule.strategy):
                raise InputError(
                    f"{self.name} takes plans of that strategy alone, this one has "
                    f"{schedule.strategy}, too"
                )
        plan.check_same_bits()  # as every replica applies its own mean


class Ring(Planned):
    """Allreduce around Hamiltonian cycles: once to add up each part, once to spread the sum.

    The cycles are the topology's best ones in both directions, weighted, or the ring of ranks
    without a topology.
    """

    name = "ring"
    promise = (
        "replicas bitwise equal after every step; every rank sends 2 (n - 1) / n of the "
        "gradients, whatever n is"
    )
    source = (
        "Patarasuk and Yuan, JPDC 2009; Gibiansky, Baidu, 2017; Sergeev and Del Balso, Horovod, "
        "arXiv 1802.05799"
    )
    strategy = "ring"

    def _default_topology(self, setting: Setting) -> Topology:
        return topoplan.load(f"ring:{len(setting.workers)}")


class Hierarchical(Planned):
    """Allreduce inside each group of well-connected GPUs (a host), between groups, inside again.

    See synth/strategies/hierarchical.py.
    """

    name = "hierarchical"
    promise = (
        "replicas bitwise equal after every step; between boxes goes each part of a box's sum, "
        "not of a GPU's"
    )
    source = (
        "Jia et al., arXiv 1807.11205, section 4.2 (hierarchical allreduce); Goyal et al., "
        "arXiv 1706.02677, section 4"
    )
    strategy = "hierarchical"


class Stock(Averaging):
    """Call torch.distributed.all_reduce on each bucket after backward (DDP does so during it)."""

    name = "stock"
    promise = "whatever the backend promises: the mean of the gradients on every rank"
    source = "torch.distributed.all_reduce"

    def average(self, flats: Flats) -> None:
        """Allreduce each bucket."""
        ranks = len(self.workers)
        for flat in flats:
            try:
                # Divided before the sum, as in DDP, so that half precision does not overflow.
                dist.all_reduce(flat.div_(ranks), group=self.setting.group)
            except RuntimeError as error:
                raise explain_failure(self.rank, "the allreduce", error) from error
            self.p2p.bytes_sent += count_ring_bytes(ranks, flat.nbytes)

    @property
    def bytes_sent(self) -> int | None:
        """Bytes that gloo's ring sends, 2 (n - 1) / n of the buckets; None for other backends."""
        return None if self.p2p.batched else self.p2p.bytes_sent


class ByteGrad(Averaging):
    """Allreduce with 8 bits per value on the wire.

    Every worker quantizes its bucket, a part for each worker, and sends each part to its owner
    (alltoall). The owner adds the parts in float32 and quantizes the mean; all workers gather the
    means (allgather) and dequantize the same bytes. Each gradient is rounded once and the mean
    once: the error is at most half a level of either, 1/510 of the range of values in a block of
    256.
    """

    name = "bytegrad"
    promise = (
        "replicas bitwise equal after every step; each gradient and the mean are off by at most "
        "1/510 of a block's range"
    )
    source = "Gan et al., Bagua, VLDB 2022, centralised low-precision synchronous (ByteGrad)"

    def average(self, flats: Flats) -> None:
        """Average each bucket."""
        for flat in flats:
            try:
                self._average_bucket(flat)
            except RuntimeError as error:
                raise explain_failure(self.rank, "the alltoall or the allgather", error) from error

    def _average_bucket(self, flat: torch.Tensor) -> None:
        ranks, group = len(self.workers), self.setting.group
        part_numel = -(-len(flat) // ranks)
        parts = flat.new_zeros(ranks * part_numel)
        parts[: len(flat)] = flat
        sent = quantize(parts.view(ranks, part_numel))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received.view(-1), sent.view(-1), group=group)
        mean = quantize(dequantize(received, part_numel).sum(0).div_(ranks)[None])
        # All ranks dequantize the same bytes, the owner included, so that replicas stay equal.
        gathered = torch.empty_like(sent)
        dist.all_gather(list(gathered), mean[0], group=group)
        flat.copy_(dequantize(gathered, part_numel).reshape(-1)[: len(flat)])
        self.p2p.bytes_sent += 2 * (ranks - 1) * quantized_bytes(part_numel)
