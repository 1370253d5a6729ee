"""Chakra execution traces for ASTRA-sim: what each rank sends, receives and adds.

The format is that of mlcommons/chakra (`schema/protobuf/et_def.proto`): a file for each rank, in
which messages follow each other, each after its length; the first one has metadata. The nodes are
those of ASTRA-sim's custom collectives (astra-sim/collectiveapi, which converts MSCCL's XML):
COMM_SEND_NODE, COMM_RECV_NODE, and COMP_NODE for an addition. A node waits for those whose values
it uses (`data_deps`): a send for what it sends, an addition for its terms. All else, such as which
of two messages takes a link first, is up to the network that ASTRA-sim simulates.

A schedule may cut its chunks into segments, equal parts that follow each other through the steps.
Each part of a chunk that is sent in a step is a message. A tick is the time slot of a step of one
segment (ir/schedule.py); nodes are written tick by tick.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import lcm
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ....topo.errors import InfeasibleError
from ....topo.version import VERSION
from ...ir.blocks import count_blocks, find_blocks, place_chunks
from ...ir.collective import Chunk, Collective
from ...ir.schedule import Schedule
from ...ir.transfers import Transfer

# The version of the schema, as ASTRA-sim's examples spell it.
SCHEMA = "1.0.2-chakra.0.0.4"
# Values of NodeType.
COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE = 4, 5, 6
# With more messages, whose traces take 20 MB and seconds to write, a plan has fewer segments.
USUAL_MESSAGES = 100_000
# Traces of more would take minutes and gigabytes to write.
_MAX_MESSAGES = 2_000_000
_FIELD = descriptor_pb2.FieldDescriptorProto
# The fields of the schema that are used: name, type, number, whether it is repeated.
_Fields = list[tuple[str, Any, int, bool]]
_ATTRIBUTE: _Fields = [
    ("name", _FIELD.TYPE_STRING, 1, False),
    ("int32_val", _FIELD.TYPE_INT32, 7, False),
    ("int64_val", _FIELD.TYPE_INT64, 9, False),
    ("bool_val", _FIELD.TYPE_BOOL, 27, False),
    ("string_val", _FIELD.TYPE_STRING, 29, False),
]
_NODE: _Fields = [
    ("id", _FIELD.TYPE_UINT64, 1, False),
    ("name", _FIELD.TYPE_STRING, 2, False),
    ("type", _FIELD.TYPE_INT32, 3, False),
    ("data_deps", _FIELD.TYPE_UINT64, 5, True),
    ("attr", ".ChakraProtoMsg.AttributeProto", 10, True),
]
_METADATA: _Fields = [
    ("version", _FIELD.TYPE_STRING, 1, False),
    ("attr", ".ChakraProtoMsg.AttributeProto", 2, True),
]


@dataclass(frozen=True)
class Traces:
    """The execution traces of all ranks, by rank, with their number of messages.

    `segments` are those of the schedule, or fewer if there would be too many messages.
    """

    files: tuple[bytes, ...]
    messages: int
    segments: int


def write_traces(schedule: Schedule, size_bytes: int) -> Traces:
    """Return the traces of a schedule for a buffer of `size_bytes`.

    Raise InfeasibleError if some GPUs take no part, if a message would have no bytes, or if there
    are too many of them.
    """
    collective = schedule.collective
    if not collective.has_all_gpus or schedule.helpers:
        raise InfeasibleError(
            "ASTRA-sim's custom collectives are for all GPUs; this plan is for some GPUs of the "
            "topology"
        )
    transfers = len(schedule.transfers)
    if transfers > _MAX_MESSAGES:
        raise InfeasibleError(
            f"the {schedule.label} schedule has {transfers} messages; expected at most "
            f"{_MAX_MESSAGES} for traces: try another strategy or size"
        )
    segments = max(1, min(schedule.segments, USUAL_MESSAGES // max(transfers, 1)))
    writer = _TraceWriter(schedule, size_bytes, segments)
    return Traces(writer.write(), transfers * segments, segments)


class _TraceWriter:
    """Writes the nodes of all ranks, tick by tick."""

    def __init__(self, schedule: Schedule, size_bytes: int, segments: int) -> None:
        self._schedule, self._segments = schedule, segments
        collective = schedule.collective
        blocks = count_blocks(collective)
        # The block of a chunk, and its ends in it, in units that divide all parts evenly.
        places = place_chunks(schedule)
        self._units = lcm(*{end.denominator for ends in places for end in ends}) * segments
        self._ends = [[(end * self._units).numerator for end in ends] for ends in places]
        self._unit_bytes = Fraction(size_bytes, max(blocks) * self._units)
        self._total = self._units * blocks[0] * blocks[1]
        self._blocks = [_number_block(chunk, blocks[1]) for chunk in schedule.chunks]
        self._files = [bytearray(_write_metadata(collective)) for _ in range(collective.ranks)]
        self._nodes = [0] * collective.ranks
        # The node that made each value: by rank, chunk and part; absent while it is the input.
        self._makers: dict[tuple[int, int, int], int] = {}
        self._tags: Counter[tuple[int, int]] = Counter()
        self._node, self._attribute = _load_types()[:2]

    def write(self) -> tuple[bytes, ...]:
        """Return the file of each rank; raise InfeasibleError if a message would have no bytes."""
        schedule, parts = self._schedule, range(self._segments)
        ticks: dict[int, list[tuple[int, Transfer]]] = defaultdict(list)
        for step, transfers in enumerate(schedule.by_step):
            for part in parts:
                tick = step * self._segments + part if schedule.stepwise else step + part
                ticks[tick] += [(part, transfer) for transfer in transfers]
        for _, messages in sorted(ticks.items()):
            self._write_tick(messages)
        return tuple(map(bytes, self._files))

    def _write_tick(self, messages: list[tuple[int, Transfer]]) -> None:
        """Write all sends, which read what was there before the tick, then all receives."""
        tags = []
        for part, t in messages:
            tags.append(self._tags[t.src, t.dst])
            self._tags[t.src, t.dst] += 1
            maker = self._makers.get((t.src, t.chunk, part))
            self._write_message(COMM_SEND_NODE, t.src, t.dst, tags[-1], part, t, maker)
        received = sorted(
            zip(tags, messages, strict=True),
            key=lambda x: (x[1][1].dst, x[1][1].chunk, x[1][0], x[1][1].src),
        )
        for tag, (part, t) in received:
            key = t.dst, t.chunk, part
            node = self._write_message(COMM_RECV_NODE, t.dst, t.src, tag, part, t, None)
            if t.op == "reduce":
                before = self._makers.get(key)
                terms = [node] if before is None else [node, before]
                node = self._append(t.dst, COMP_NODE, f"add chunk {t.chunk}.{part}", terms, {})
            self._makers[key] = node

    def _write_message(
        self,
        kind: int,
        rank: int,
        peer: int,
        tag: int,
        part: int,
        transfer: Transfer,
        maker: int | None,
    ) -> int:
        """Append a send or a receive of `rank` to its file, and return its number."""
        low, high = self._ends[transfer.chunk]
        length = (high - low) // self._segments
        start = low + part * length
        end_bytes, start_bytes = (int(at * self._unit_bytes) for at in (start + length, start))
        if end_bytes == start_bytes:
            raise InfeasibleError(
                f"a part of chunk {transfer.chunk} of the {self._schedule.label} schedule has no "
                "byte; give a larger size",
                parameter="size",
            )
        is_send = kind == COMM_SEND_NODE
        name = f"{'send' if is_send else 'receive'} chunk {transfer.chunk}.{part}"
        attributes: dict[str, tuple[str, int | bool]] = {
            "comm_type": ("int64_val", kind),
            "comm_size": ("int64_val", end_bytes - start_bytes),
            "comm_dst" if is_send else "comm_src": ("int32_val", peer),
            "comm_tag": ("int32_val", tag),
            # Where the data lies among that of all ranks: collectiveapi's names.
            "msg_chunk_idx": (
                "int64_val",
                self._blocks[transfer.chunk] * self._units + start,
            ),
            "msg_chunk_cnt": ("int64_val", length),
            "total_chunk_cnt": ("int64_val", self._total),
        }
        if not is_send and transfer.op == "reduce":
            attributes["is_rrc"] = ("bool_val", True)
        return self._append(rank, kind, name, [] if maker is None else [maker], attributes)

    def _append(
        self,
        rank: int,
        kind: int,
        name: str,
        data_deps: list[int],
        attributes: dict[str, tuple[str, int | bool]],
    ) -> int:
        number = self._nodes[rank]
        self._nodes[rank] += 1
        listed = [
            self._attribute(name=key, **{field: value})
            for key, (field, value) in attributes.items()
        ]
        node = self._node(id=number, name=name, type=kind, data_deps=data_deps, attr=listed)
        self._files[rank] += _frame(node)
        return number


def _number_block(chunk: Chunk, outputs: int) -> int:
    """Return the number of a chunk's block among those of all pairs of ranks, or all ranks."""
    from_block, to_block = find_blocks(chunk)
    return from_block * outputs + to_block


def _write_metadata(collective: Collective) -> bytes:
    """Return the first message of every file."""
    _, attribute, metadata = _load_types()
    given = {"schema": SCHEMA, "collective": collective.name, "generator": f"topoplan {VERSION}"}
    listed = [attribute(name=name, string_val=value) for name, value in given.items()]
    return _frame(metadata(version=SCHEMA.rpartition("chakra.")[2], attr=listed))


@cache
def _load_types() -> tuple[Any, Any, Any]:
    """Return the classes of Node, AttributeProto and GlobalMetadata."""
    file = descriptor_pb2.FileDescriptorProto(
        name="topoplan/chakra.proto", package="ChakraProtoMsg", syntax="proto3"
    )
    for name, fields in (
        ("AttributeProto", _ATTRIBUTE),
        ("Node", _NODE),
        ("GlobalMetadata", _METADATA),
    ):
        message = file.message_type.add(name=name)
        for field, kind, number, is_repeated in fields:
            label = _FIELD.LABEL_REPEATED if is_repeated else _FIELD.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = _FIELD.TYPE_MESSAGE, kind
            else:
                added.type = kind
            # The values of an attribute are one of several, and zero is written too.
            if name == "AttributeProto" and number > 1:
                added.oneof_index = 0
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    node, attribute, metadata = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
        for name in ("Node", "AttributeProto", "GlobalMetadata")
    )
    return node, attribute, metadata


def _frame(message: Any) -> bytes:
    """Return a message after its length, as a varint."""
    body: bytes = message.SerializeToString()
    length, prefix = len(body), bytearray()
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + body
