"""Write a schedule as an execution plan of MSCCL++: the JSON that its executor runs.

A piece is a part of a chunk (pieces.py), a phase what a rank does with a piece in one step
(phases.py), a message what MSCCL++ calls the buffer of a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from operator import itemgetter
from typing import Any

from ....topo.errors import InfeasibleError
from ....topo.graph import Topology
from ...ir.blocks import count_blocks
from ...ir.schedule import Schedule
from ...sizes import show_size
from .blocks import Block, Channel, End, Wiring, assign_blocks, connect
from .limits import (
    MAX_BLOCKS,
    MAX_CHANNELS,
    MAX_ITERATIONS,
    MAX_OPERATIONS,
    MAX_PEERS,
    MAX_SEMAPHORES,
    THREADS,
    ALIGNMENT_bytes,
    MAX_BUFFER_bytes,
)
from .phases import (
    MEMORY,
    PORT,
    RECEIVE,
    SCRATCH,
    SEND,
    BlockPhase,
    BufferOffset,
    ChannelTypes,
    PhaseLister,
)
from .pieces import Grid, cut_chunks

# MSCCL++'s names of the collectives. Its executor takes buffers of one size on all ranks, so there
# are no plans for scatter and gather.
COLLECTIVES = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reduce-scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "alltoall",
}
# Those that libraries call with one buffer for input and output. MSCCL++ selects plans by that; the
# operations are right with one buffer and with two.
_IN_PLACE = ("allreduce", "broadcast", "reduce")
# A block moves about 10 GB/s, so that 24 of them fill the links of most GPUs.
_USUAL_BLOCKS = 24
# 64 KiB take a block about 6 us, longer than its signals.
_MIN_PIECE_bytes = 1 << 16
# 128 KiB take a block 13 us, several times as long as the signals of an iteration.
_MIN_UNIT_bytes = 1 << 17

Operation = dict[str, Any]
_NOP: Operation = {"name": "nop"}


@dataclass(frozen=True)
class ExecutionPlan:
    """An execution plan for MSCCL++ as JSON `text`, and figures of it.

    It is for messages from `min_bytes` to `max_bytes` that are multiples of `step_bytes`. `blocks`
    are those of the busiest GPU; `operations` and `channels` those of the busiest block.
    `scratch_share` is the scratch memory of a GPU as a share of the message. `iterations` is that
    of the longest pipeline at the size asked for, 1 if there is none. If `is_rounded`, chunks
    differ by up to 1/256 from the schedule's.
    """

    text: str
    blocks: int
    operations: int
    channels: int
    scratch_share: Fraction
    min_bytes: int
    max_bytes: int
    step_bytes: int
    iterations: int
    is_rounded: bool


def write_mscclpp(
    schedule: Schedule,
    topology: Topology,
    size_bytes: int,
    min_bytes: int = 0,
    max_bytes: int | None = None,
) -> ExecutionPlan:
    """Return the MSCCL++ execution plan of a schedule for messages of `size_bytes`.

    It is also for others from `min_bytes` up to below `max_bytes` (None: no limit), where the
    format allows. Raise InfeasibleError if the format cannot express the schedule, or a GPU would
    need too many blocks.
    """
    collective = schedule.collective
    if collective.name not in COLLECTIVES:
        raise InfeasibleError(
            f"MSCCL++'s execution plans have no {collective.name}; they are for "
            f"{', '.join(COLLECTIVES)}"
        )
    if not collective.has_all_gpus or schedule.helpers:
        raise InfeasibleError(
            "MSCCL++'s execution plans are for all GPUs of a communicator; this plan is for some "
            "GPUs of the topology"
        )
    types = _find_channel_types(schedule, topology)
    draft = _Draft(schedule, cut_chunks(schedule, size_bytes, 1), types)
    least = _MIN_PIECE_bytes if draft.unit_of is None else 4 * _MIN_UNIT_bytes
    smallest = min(piece.units for piece in draft.grid.pieces) * draft.grid.unit_bytes
    # A block is slow, so chunks are cut until there are enough of them.
    parts = min(_USUAL_BLOCKS // draft.wiring.most_blocks, smallest // least)
    if parts > 1:
        draft = _Draft(schedule, cut_chunks(schedule, size_bytes, parts), types)
    return draft.write(topology.name, size_bytes, min_bytes, max_bytes)


def _find_channel_types(schedule: Schedule, topology: Topology) -> ChannelTypes:
    """Return the type of the channels between two ranks: through a network they are ports."""
    through = {
        device.id
        for device in topology.devices
        if device.kind == "nic" or device.family == "network"
    }
    return {
        (min(src, dst), max(src, dst)): MEMORY if through.isdisjoint(route) else PORT
        for src, dst, route in sorted(schedule.transfers.paths()[0])
    }


def _find_iterations(schedule: Schedule, grid: Grid) -> dict[int, int] | None:
    """Return the bytes of an iteration of each piece's pipeline; None if nothing is pipelined.

    In a stepwise schedule steps do not overlap, which is what happens without pipelines.
    """
    if schedule.segments == 1 or schedule.stepwise:
        return None
    lengths = {piece.number: piece.units * grid.unit_bytes for piece in grid.pieces}
    whole = schedule.segments * ALIGNMENT_bytes
    unit_of = {
        number: max(_MIN_UNIT_bytes, -(-length // whole) * ALIGNMENT_bytes)
        for number, length in lengths.items()
    }
    return unit_of if any(unit_of[n] < length for n, length in lengths.items()) else None


def count_operations(operations: Iterable[Operation]) -> int:
    """Return the number of a block's operations, nested ones included, as its limit counts them."""
    return sum(1 + count_operations(op.get("ops", ())) for op in operations)


def _use_semaphores(name: str, numbers: Sequence[int]) -> Iterator[Operation]:
    for start in range(0, len(numbers), MAX_SEMAPHORES):
        yield {"name": name, "semaphore_ids": list(numbers[start : start + MAX_SEMAPHORES])}


def _find_peer(channel: Channel, rank: int) -> int:
    _, (low, _), (high, _) = channel
    return high if low == rank else low


def _list_peers(wiring: Wiring, ends: Iterable[End]) -> list[tuple[str, int]]:
    """Return the type of channel and the rank of each peer to which some blocks of a rank send."""
    sent = {(channel, end) for end in ends for channel in wiring.sends[end].values()}
    return sorted({(channel[0], _find_peer(channel, end[0])) for channel, end in sent})


def _show_place(place: BufferOffset, units: int) -> dict[str, Any]:
    return {"type": place[0], "index": place[1], "size": units}


class _Places:
    """Writes operations of a block, with the block's numbers of channels and remote buffers."""

    def __init__(self, wiring: Wiring, end: End) -> None:
        self.end, self._wiring = end, wiring
        listed = [wiring.list_channels(end, each) for each in (MEMORY, PORT)]
        self._channels = {c: number for each in listed for number, c in enumerate(each)}
        groups = groupby(_list_peers(wiring, [end]), itemgetter(0))
        self._buffers = {pair: n for _, pairs in groups for n, pair in enumerate(pairs)}

    def signal(self, name: str, channels: Sequence[Channel]) -> Iterator[Operation]:
        """Yield the operations that signal or wait, on channels of one type."""
        for start in range(0, len(channels), MAX_PEERS):
            yield self._signal(name, channels[start : start + MAX_PEERS])

    def _signal(self, name: str, channels: Sequence[Channel]) -> Operation:
        numbers = [self._channels[channel] for channel in channels]
        return {"name": name, "channel_ids": numbers, "channel_type": channels[0][0]}

    def list_phase(self, phase: BlockPhase) -> Iterator[Operation]:
        """Yield the operations of a phase."""
        units = phase.piece.units
        ends = self._wiring.sends if phase.kind == SEND else self._wiring.receives
        channels = [ends[self.end][phase.piece.number, phase.step, peer] for peer in phase.peers]
        if phase.kind == SEND:
            yield from self._send(phase, channels)
        elif phase.kind == RECEIVE:
            yield self._signal("wait", channels)
            yield _NOP
        if phase.target is not None:
            yield {
                "name": "re",
                "src_buff": [_show_place(term, units) for term in phase.terms],
                "dst_buff": [_show_place(phase.target, units)],
                "reduce_op": "sum",
            }
        for source, target in phase.copies:
            yield {
                "name": "copy",
                "src_buff": [_show_place(source, units)],
                "dst_buff": [_show_place(target, units)],
            }
        if phase.target is not None or phase.copies:
            yield _NOP

    def _send(self, phase: BlockPhase, channels: Sequence[Channel]) -> Iterator[Operation]:
        assert phase.source is not None
        units, is_port = phase.piece.units, phase.channel == PORT
        yield {
            # A port reads the data later; with a flush it has done so when the operation ends.
            "name": "pwsf" if is_port else "put",
            "src_buff": [_show_place(phase.source, units)] * len(channels),
            "dst_buff": [
                {"buffer_id": self._buffers[phase.channel, peer], "index": at, "size": units}
                for peer, at in zip(phase.peers, phase.places, strict=True)
            ],
            "channel_ids": [self._channels[channel] for channel in channels],
            "channel_type": phase.channel,
        }
        if not is_port:
            yield _NOP
            yield self._signal("signal", channels)


class _Draft:
    """A schedule lowered to blocks that keep the limits."""

    def __init__(self, schedule: Schedule, grid: Grid, types: ChannelTypes) -> None:
        self.schedule, self.grid = schedule, grid
        self.unit_of = _find_iterations(schedule, grid)
        lister = PhaseLister(schedule, grid, types)
        programs = lister.list_programs()
        self.scratch = lister.scratch
        strands = len(grid.pieces)
        while True:
            self.wiring = connect(assign_blocks(programs, strands, self.unit_of is not None))
            self._divide()
            most = self.wiring.most_blocks
            if most <= MAX_BLOCKS:
                return
            if strands == 1:
                raise InfeasibleError(
                    f"the {schedule.label} schedule needs {most} thread blocks on a GPU, at "
                    f"MSCCL++'s limits of {MAX_OPERATIONS} operations and {MAX_CHANNELS} channels "
                    f"a block; expected at most {MAX_BLOCKS}, which run at once: try another "
                    "strategy, such as ring"
                )
            strands = max(1, min(strands - 1, strands * MAX_BLOCKS // most))

    def _divide(self) -> None:
        """Divide blocks that exceed a limit, until none does."""
        while True:
            blocks: list[list[Block]] = []
            is_changed = False
            for rank, listed in enumerate(self.wiring.blocks):
                blocks.append([])
                for number, block in enumerate(listed):
                    half = len(block) // 2
                    if half and self._exceeds((rank, number), block):
                        blocks[-1] += [block[:half], block[half:]]
                        is_changed = True
                    else:
                        blocks[-1].append(block)
            if not is_changed:
                return
            self.wiring = connect(blocks)

    def _exceeds(self, end: End, block: Block) -> bool:
        channels = max(len(self.wiring.list_channels(end, each)) for each in (MEMORY, PORT))
        return channels > MAX_CHANNELS or (
            count_operations(self._list_operations(end, block)) > MAX_OPERATIONS
        )

    def _list_operations(self, end: End, block: Block) -> list[Operation]:
        """Return the operations of a block."""
        wiring = self.wiring
        receives, sends = (
            sorted(set(each[end].values())) for each in (wiring.receives, wiring.sends)
        )
        place = _Places(wiring, end)
        # A port has no relaxed signal.
        out = [
            *place.signal("rlxsignal", [c for c in receives if c[0] == MEMORY]),
            *place.signal("signal", [c for c in receives if c[0] == PORT]),
            *place.signal("rlxwait", [c for c in sends if c[0] == MEMORY]),
            *place.signal("wait", [c for c in sends if c[0] == PORT]),
        ]
        if sends:
            out.append(_NOP)
        if self.unit_of is None:
            out += self._list_sequence(place, block)
        else:
            for piece, phases in groupby(block, lambda phase: phase.piece):
                loop = {"unit_size": self.unit_of[piece.number], "num_chunks": piece.units}
                inner = self._list_sequence(place, list(phases))
                out.append({"name": "pipeline", "iter_context": loop, "ops": inner})
        return out

    def _list_sequence(self, place: _Places, phases: Sequence[BlockPhase]) -> list[Operation]:
        """Return the operations of phases, between those on semaphores."""
        wiring, end = self.wiring, place.end
        pieces = sorted({phase.piece.number for phase in phases})
        acquires, releases = (
            [each[end, piece] for piece in pieces if (end, piece) in each]
            for each in (wiring.acquires, wiring.releases)
        )
        out = [*_use_semaphores("sem_acquire", acquires)]
        if acquires:
            out.append(_NOP)
        for phase in phases:
            out += place.list_phase(phase)
        if releases:
            out += [_NOP, *_use_semaphores("sem_release", releases)]
        elif out[-1] == _NOP:
            out.pop()
        # Two barriers in a row are one.
        return [
            op for op, before in zip(out, [None, *out], strict=False) if op != _NOP or op != before
        ]

    def write(
        self, topology_name: str, size_bytes: int, min_bytes: int, max_bytes: int | None
    ) -> ExecutionPlan:
        """Return the execution plan; its arguments are those of `write_mscclpp`."""
        schedule, wiring, grid = self.schedule, self.wiring, self.grid
        units_of_message = size_bytes // grid.unit_bytes
        step_bytes = units_of_message * ALIGNMENT_bytes
        most = self._find_most_bytes(units_of_message)
        if size_bytes > most:
            raise InfeasibleError(
                f"a message of {show_size(size_bytes)} is too large for MSCCL++'s executor, whose "
                f"offsets have 32 bits: with this schedule it takes up to {show_size(most)}",
                parameter="size",
            )
        least = -(-max(min_bytes, 1) // step_bytes) * step_bytes
        if max_bytes is not None:
            most = min(most, (max_bytes - 1) // step_bytes * step_bytes)
        gpus = [self._list_gpu(rank) for rank in range(schedule.collective.ranks)]
        name = f"{schedule.collective.name} {topology_name} {schedule.label} {size_bytes}"
        body = {
            "name": f"topoplan {name}",
            "collective": COLLECTIVES[schedule.collective.name],
            "protocol": "Simple",
            "inplace": schedule.collective.name in _IN_PLACE,
            "reuse_resources": False,
            "gpus": gpus,
            "num_threads_per_block": THREADS,
            "use_double_scratch_buffer": False,
            "buffer_alignment": ALIGNMENT_bytes,
            "min_message_size": least,
            "max_message_size": most,
        }
        blocks = [block for gpu in gpus for block in gpu["threadblocks"]]
        return ExecutionPlan(
            text=json.dumps(body) + "\n",
            blocks=wiring.most_blocks,
            operations=max(count_operations(block["ops"]) for block in blocks),
            channels=max(len(c["channel_ids"]) for block in blocks for c in block["channels"]),
            scratch_share=Fraction(max(self.scratch.values()), units_of_message),
            min_bytes=least,
            max_bytes=most,
            step_bytes=step_bytes,
            iterations=self._count_iterations(grid.unit_bytes),
            is_rounded=grid.is_rounded,
        )

    def _count_iterations(self, unit_bytes: int) -> int:
        """Return the iterations of the longest pipeline if a unit has so many bytes."""
        if self.unit_of is None:
            return 1
        return max(
            -(-piece.units * unit_bytes // self.unit_of[piece.number]) for piece in self.grid.pieces
        )

    def _find_most_bytes(self, units_of_message: int) -> int:
        """Return the largest message for which offsets and iterations fit into their integers."""
        grid = self.grid
        blocks = max(count_blocks(self.schedule.collective))
        units = max(blocks * grid.units, *self.scratch.values())
        most = MAX_BUFFER_bytes // units
        if self.unit_of is not None:
            most = min(
                most,
                *(
                    self.unit_of[piece.number] * MAX_ITERATIONS // piece.units
                    for piece in grid.pieces
                ),
            )
        return most // ALIGNMENT_bytes * ALIGNMENT_bytes * units_of_message

    def _list_gpu(self, rank: int) -> dict[str, Any]:
        """Return the JSON of one GPU."""
        wiring = self.wiring
        ends = [(rank, number) for number in range(len(wiring.blocks[rank]))]
        from_blocks, to_blocks = count_blocks(self.schedule.collective)
        peers = _list_peers(wiring, ends)
        used = {
            c for end in ends for each in (MEMORY, PORT) for c in wiring.list_channels(end, each)
        }
        # Both GPUs number the channels between them in one order: that is how they are paired.
        channels = {each: sorted(c for c in used if c[0] == each) for each in (MEMORY, PORT)}
        return {
            "id": rank,
            "input_chunks": from_blocks * self.grid.units,
            "output_chunks": to_blocks * self.grid.units,
            "scratch_chunks": self.scratch[rank],
            "threadblocks": [self._list_block(end, channels, peers) for end in ends],
            "channels": [
                {"channel_type": each, "connected_to": [_find_peer(c, rank) for c in listed]}
                for each, listed in channels.items()
                if listed
            ],
            "remote_buffers": [
                {"rank": peer, "type": SCRATCH, "access_channel_types": [channel]}
                for channel, peer in peers
            ],
            "semaphores": [{"init_value": 0}] * wiring.semaphores[rank],
        }

    def _list_block(
        self, end: End, channels: dict[str, list[Channel]], peers: list[tuple[str, int]]
    ) -> dict[str, Any]:
        wiring = self.wiring
        own = {each: wiring.list_channels(end, each) for each in channels}
        reached = _list_peers(wiring, [end])
        return {
            "id": end[1],
            "ops": self._list_operations(end, wiring.blocks[end[0]][end[1]]),
            "channels": [
                {"channel_type": each, "channel_ids": [channels[each].index(c) for c in listed]}
                for each, listed in own.items()
                if listed
            ],
            "remote_buffer_refs": [
                {
                    "access_channel_type": each,
                    "remote_buffer_ids": [peers.index(pair) for pair in listed],
                }
                for each, listed in (
                    (each, list(pairs)) for each, pairs in groupby(reached, itemgetter(0))
                )
            ],
        }
