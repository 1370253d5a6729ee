"""Play an execution plan of MSCCL++ on numbers, as its executor would, in random order.

Written from the executor's source and not from the exporter: it reads only the JSON. Every thread
block has two warps, which go through its operations by themselves and meet only at `nop`; a data
operation is divided between them at random, and signals, waits and semaphores are the first one's.
Calls follow each other without a pause, as kernels in a stream do. A plan that lacks a barrier, a
wait or a handshake ends with wrong numbers in some order, or nothing can run any more.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Share = NDArray[np.bool_]
# The executor's limits (execution_common.hpp), and its alignment, of which a number here is one.
MAX_OPERATION, MAX_CHANNEL, MAX_CHANNEL_PER_OPERATION, MAX_DEVICE_SEMAPHORES = 64, 16, 8, 16
ALIGNMENT = 16
WARPS = 2
# A warp yields the key of what it waits for, or None if it can go on.
Warp = Iterator[object]


class PlanError(Exception):
    """A plan that breaks a limit, or whose blocks wait forever."""


@dataclass
class _Operation:
    """An operation of a block, and the part of its data that an iteration of a pipeline handles."""

    fields: dict[str, Any]
    offset: int
    length: int | None

    @property
    def name(self) -> str:
        return str(self.fields["name"])


class Player:
    """Plays calls of a plan with `count` numbers a message of `bytes` (16 each)."""

    def __init__(self, text: str, in_bytes: int, out_bytes: int, in_place: bool, seed: int) -> None:
        self.random = random.Random(seed)
        self.numpy_random = np.random.default_rng(seed)
        plan = json.loads(text)
        assert plan["protocol"] == "Simple" and plan["buffer_alignment"] == ALIGNMENT
        size = out_bytes if plan["collective"] == "allgather" else in_bytes
        if not plan["min_message_size"] <= size <= plan["max_message_size"]:
            raise PlanError(f"{size} bytes: outside the plan's range")
        self.gpus = plan["gpus"]
        assert [gpu["id"] for gpu in self.gpus] == list(range(len(self.gpus)))
        self.unit = self._find_unit(in_bytes, out_bytes)
        self.memory: list[dict[str, Numbers]] = []
        for rank, gpu in enumerate(self.gpus):
            scratch = self._draw(gpu["scratch_chunks"] * self.unit)
            inputs, outputs = (self._draw(n // ALIGNMENT) for n in (in_bytes, out_bytes))
            if in_place:
                # The smaller buffer is this rank's part of the larger one.
                if len(inputs) >= len(outputs):
                    at = rank * len(outputs) if len(inputs) > len(outputs) else 0
                    outputs = inputs[at : at + len(outputs)]
                else:
                    inputs = outputs[rank * len(inputs) : (rank + 1) * len(inputs)]
            self.memory.append({"i": inputs, "o": outputs, "s": scratch})
        self.peer_of = self._pair_channels()
        # Signals that arrived and that were awaited, by rank, type and number of the channel.
        self.arrived: dict[tuple[int, str, int], int] = defaultdict(int)
        self.awaited: dict[tuple[int, str, int], int] = defaultdict(int)
        self.semaphores = [[s["init_value"] for s in gpu["semaphores"]] for gpu in self.gpus]

    def _draw(self, count: int) -> Numbers:
        return self.numpy_random.integers(-(2**62), 2**62, count)

    def _find_unit(self, in_bytes: int, out_bytes: int) -> int:
        """Return the numbers of a unit; the executor refuses sizes that are no multiples."""
        units: set[int] = set()
        for gpu in self.gpus:
            for length, chunks in (
                (in_bytes, gpu["input_chunks"]),
                (out_bytes, gpu["output_chunks"]),
            ):
                if length % ALIGNMENT or (length // ALIGNMENT) % chunks:
                    raise PlanError(f"{length} bytes are not aligned with {chunks} chunks")
                units.add(length // ALIGNMENT // chunks)
        if len(units) > 1:
            raise PlanError("size per chunks inconsistent")
        return units.pop()

    def _pair_channels(self) -> dict[tuple[int, str, int], tuple[int, str, int]]:
        """Return the other end of each channel: channels between two GPUs pair up in order."""
        ends: dict[tuple[int, int, str], list[int]] = defaultdict(list)
        for gpu in self.gpus:
            for listed in gpu["channels"]:
                for number, peer in enumerate(listed["connected_to"]):
                    ends[gpu["id"], peer, listed["channel_type"]].append(number)
        paired = {}
        for (rank, peer, kind), numbers in ends.items():
            others = ends.get((peer, rank, kind), [])
            if len(others) != len(numbers):
                raise PlanError(f"GPUs {rank} and {peer} have different numbers of channels")
            for mine, other in zip(numbers, others, strict=True):
                paired[rank, kind, mine] = (peer, kind, other)
        return paired

    # Calls

    def play(self, calls: Sequence[Sequence[Numbers]]) -> list[list[Numbers]]:
        """Return the outputs of all ranks in each call; `calls` are their inputs."""
        results = [[np.zeros(0, np.int64)] * len(self.gpus) for _ in calls]
        running: dict[int, int] = {}
        ready: list[tuple[int, Warp]] = []
        waiting: dict[object, list[tuple[int, Warp]]] = defaultdict(list)
        self.woken: list[object] = []
        number_of = dict.fromkeys(range(len(self.gpus)), 0)

        def start(rank: int) -> None:
            self.memory[rank]["i"][:] = calls[number_of[rank]][rank]
            warps = [(rank, warp) for warp in self._list_warps(rank)]
            running[rank] = len(warps)
            ready.extend(warps)

        def finish(rank: int) -> None:
            results[number_of[rank]][rank] = self.memory[rank]["o"].copy()
            number_of[rank] += 1
            if number_of[rank] < len(calls):
                start(rank)

        for rank in number_of:
            start(rank)
        while ready:
            place = self.random.randrange(len(ready))
            rank, warp = ready[place]
            try:
                blocked = next(warp)
            except StopIteration:
                ready[place] = ready[-1]
                ready.pop()
                running[rank] -= 1
                if not running[rank]:
                    finish(rank)
            else:
                if blocked is not None:
                    ready[place] = ready[-1]
                    ready.pop()
                    waiting[blocked].append((rank, warp))
            for key in self.woken:
                ready.extend(waiting.pop(key, ()))
            self.woken.clear()
        if any(waiting.values()):
            stuck = sorted({rank for listed in waiting.values() for rank, _ in listed})
            raise PlanError(f"deadlock: GPUs {stuck} wait for each other")
        if any(self.arrived[end] != self.awaited[end] for end in self.peer_of):
            raise PlanError("a signal is never awaited")
        return results

    def _list_warps(self, rank: int) -> list[Warp]:
        warps: list[Warp] = []
        for number, block in enumerate(self.gpus[rank]["threadblocks"]):
            assert block["id"] == number
            operations = list(self._expand(block))
            barrier = _Barrier(self, (rank, number))
            shares: dict[int, Share] = {}
            warps += [
                self._run(rank, block, operations, warp, barrier, shares) for warp in range(WARPS)
            ]
        return warps

    def _expand(self, block: dict[str, Any]) -> Iterator[_Operation]:
        """Yield the operations of a block in the order in which they run."""
        _check_limits(block)
        for op in block["ops"]:
            if op["name"] != "pipeline":
                yield _Operation(op, 0, None)
                continue
            loop = op["iter_context"]
            assert loop["unit_size"] % ALIGNMENT == 0
            step, total = loop["unit_size"] // ALIGNMENT, loop["num_chunks"] * self.unit
            if -(-total // step) >= 2**16:
                raise PlanError("too many iterations for 16 bits")
            for offset in range(0, total, step):
                for inner in op["ops"]:
                    yield _Operation(inner, offset, step)

    # Operations

    def _run(
        self,
        rank: int,
        block: dict[str, Any],
        operations: list[_Operation],
        warp: int,
        barrier: _Barrier,
        shares: dict[int, Share],
    ) -> Warp:
        numbers = {c["channel_type"]: c["channel_ids"] for c in block["channels"]}
        for number, op in enumerate(operations):
            yield None
            match op.name:
                case "nop":
                    yield from barrier.meet()
                case "signal" | "rlxsignal" if warp == 0:
                    self._signal(rank, op, numbers)
                case "wait" | "rlxwait" if warp == 0:
                    for end in self._list_ends(rank, op, numbers):
                        while self.arrived[end] == self.awaited[end]:
                            yield end
                        self.awaited[end] += 1
                case "sem_acquire" if warp == 0:
                    for semaphore in op.fields["semaphore_ids"]:
                        while not self.semaphores[rank][semaphore]:
                            yield rank, semaphore
                        self.semaphores[rank][semaphore] -= 1
                case "sem_release" if warp == 0:
                    for semaphore in op.fields["semaphore_ids"]:
                        self.semaphores[rank][semaphore] += 1
                        self.woken.append((rank, semaphore))
                case "pwsf" if warp == 0:
                    assert op.fields["channel_type"] == "port"
                    self._move(rank, block, op, None)
                    self._signal(rank, op, numbers)
                case "put" | "copy" | "re":
                    share = shares.pop(number, None)
                    if share is None:
                        # The first warp that comes draws its share; the rest is the other's.
                        count = len(self._locate(rank, op.fields["src_buff"][0], op))
                        share = self.numpy_random.random(count) < 0.5
                        shares[number] = ~share
                    self._move(rank, block, op, share)
                case "signal" | "rlxsignal" | "wait" | "rlxwait" | "sem_acquire" | "sem_release":
                    pass
                case "pwsf":
                    pass
                case name:
                    raise PlanError(f"unknown operation {name}")

    def _list_ends(
        self, rank: int, op: _Operation, numbers: dict[str, list[int]]
    ) -> list[tuple[int, str, int]]:
        kind = op.fields["channel_type"]
        return [(rank, kind, numbers[kind][i]) for i in op.fields["channel_ids"]]

    def _signal(self, rank: int, op: _Operation, numbers: dict[str, list[int]]) -> None:
        for end in self._list_ends(rank, op, numbers):
            other = self.peer_of[end]
            self.arrived[other] += 1
            self.woken.append(other)

    def _locate(self, rank: int, place: dict[str, Any], op: _Operation) -> Numbers:
        """Return what an operation reads or writes at a place, as a view."""
        low = place["index"] * self.unit + op.offset
        high = (place["index"] + place["size"]) * self.unit
        buffer = self.memory[rank][place["type"]]
        if not 0 <= low <= high <= len(buffer):
            raise PlanError(f"GPU {rank}: {place} lies outside its buffer")
        return buffer[low : high if op.length is None else min(high, low + op.length)]

    def _move(self, rank: int, block: dict[str, Any], op: _Operation, share: Share | None) -> None:
        """Do one warp's share of a data operation (None: all of it)."""
        take = slice(None) if share is None else share
        sources = [self._locate(rank, place, op)[take] for place in op.fields["src_buff"]]
        if op.name in ("copy", "re"):
            (place,) = op.fields["dst_buff"]
            self._locate(rank, place, op)[take] = np.sum(sources, axis=0)
            assert len(sources) == 1 or op.fields["reduce_op"] == "sum"
            return
        kind = op.fields["channel_type"]
        (refs,) = (
            r["remote_buffer_ids"]
            for r in block["remote_buffer_refs"]
            if r["access_channel_type"] == kind
        )
        channels = next(c["channel_ids"] for c in block["channels"] if c["channel_type"] == kind)
        for source, place, channel in zip(
            sources, op.fields["dst_buff"], op.fields["channel_ids"], strict=True
        ):
            remote = self.gpus[rank]["remote_buffers"][refs[place["buffer_id"]]]
            assert kind in remote["access_channel_types"]
            # The signal that follows has to go to the GPU that the data goes to.
            assert self.peer_of[rank, kind, channels[channel]][0] == remote["rank"]
            target = {**place, "type": remote["type"]}
            self._locate(remote["rank"], target, op)[take] = source


class _Barrier:
    """Where the warps of a block meet."""

    def __init__(self, player: Player, key: object) -> None:
        self.player, self.key, self.arrived, self.round = player, key, 0, 0

    def meet(self) -> Warp:
        mine = self.round
        self.arrived += 1
        if self.arrived == WARPS:
            self.arrived, self.round = 0, self.round + 1
            self.player.woken.append((self.key, mine))
        while self.round == mine:
            yield self.key, mine


def _check_limits(block: dict[str, Any]) -> None:
    """Raise PlanError if a block has more of something than the executor's arrays."""
    listed = [*block["ops"], *(inner for op in block["ops"] for inner in op.get("ops", ()))]
    if len(listed) > MAX_OPERATION:
        raise PlanError(f"{len(listed)} operations in a block")
    for op in listed:
        if len(op.get("channel_ids", ())) > MAX_CHANNEL_PER_OPERATION:
            raise PlanError("too many channels in an operation")
        if len(op.get("semaphore_ids", ())) > MAX_DEVICE_SEMAPHORES:
            raise PlanError("too many semaphores in an operation")
        if max(len(op.get("src_buff", ())), len(op.get("dst_buff", ()))) > 10:
            raise PlanError("too many buffers in an operation")
    for key, ids in (("channels", "channel_ids"), ("remote_buffer_refs", "remote_buffer_ids")):
        if any(len(each[ids]) > MAX_CHANNEL for each in block[key]):
            raise PlanError(f"too many {key} in a block")
