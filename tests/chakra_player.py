"""Read Chakra execution traces with the schema's own numbers, and play them on numbers.

Written from `et_def.proto` of mlcommons/chakra and ASTRA-sim's custom collectives, not from the
exporter. Ready nodes of all ranks run in random order; a receive takes the message with its source
and tag, which must have its size.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.decoder import _DecodeVarint32
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE = 4, 5, 6
_F = descriptor_pb2.FieldDescriptorProto
# The schema's messages: name, type, number; "*" before a name that is repeated.
_SCHEMA: dict[str, list[tuple[str, Any, int]]] = {
    "AttributeProto": [
        ("name", _F.TYPE_STRING, 1),
        ("int32_val", _F.TYPE_INT32, 7),
        ("int64_val", _F.TYPE_INT64, 9),
        ("bool_val", _F.TYPE_BOOL, 27),
        ("string_val", _F.TYPE_STRING, 29),
    ],
    "GlobalMetadata": [("version", _F.TYPE_STRING, 1), ("*attr", "AttributeProto", 2)],
    "Node": [
        ("id", _F.TYPE_UINT64, 1),
        ("name", _F.TYPE_STRING, 2),
        ("type", _F.TYPE_INT32, 3),
        ("*ctrl_deps", _F.TYPE_UINT64, 4),
        ("*data_deps", _F.TYPE_UINT64, 5),
        ("duration_micros", _F.TYPE_UINT64, 7),
        ("*attr", "AttributeProto", 10),
    ],
}


def _load_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="c", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, kind, number in fields:
            added = message.field.add(name=field.lstrip("*"), number=number)
            added.label = _F.LABEL_REPEATED if field[0] == "*" else _F.LABEL_OPTIONAL
            added.type = _F.TYPE_MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                added.type_name = f".c.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"c.{name}"))
        for name in _SCHEMA
    }


_CLASSES = _load_classes()


def read_trace(data: bytes) -> tuple[dict[str, Any], list[Any]]:
    """Return a trace's metadata and its nodes."""
    frames = list(_split(data))
    metadata = _CLASSES["GlobalMetadata"].FromString(frames[0])
    named = {each.name: each.string_val for each in metadata.attr}
    return named, [_CLASSES["Node"].FromString(frame) for frame in frames[1:]]


def _split(data: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(data):
        length, place = _DecodeVarint32(data, place)
        assert place + length <= len(data), "a message is cut off"
        yield data[place : place + length]
        place += length


def read_attributes(node: Any) -> dict[str, int]:
    """Return a node's attributes by name."""
    return {each.name: each.int32_val or each.int64_val or int(each.bool_val) for each in node.attr}


def play(files: list[bytes], inputs: list[Numbers], seed: int) -> list[dict[int, int]]:
    """Return what each rank ends with: the number at each unit of the data of all ranks.

    `inputs` are the numbers of each rank at the units of all data. Raise AssertionError if nodes
    wait for each other, or a send and a receive do not match.
    """
    draw = random.Random(seed)
    waiting = {
        (rank, node.id): node for rank, file in enumerate(files) for node in read_trace(file)[1]
    }
    values: dict[tuple[int, int], Numbers] = {}
    sent: dict[tuple[int, int, int], tuple[int, Numbers]] = {}
    ends: list[dict[int, tuple[int, int]]] = [{} for _ in files]
    while waiting:
        ready = [
            (rank, node)
            for (rank, _), node in waiting.items()
            if all((rank, dep) in values for dep in [*node.data_deps, *node.ctrl_deps])
            and (node.type != COMM_RECV_NODE or _find_message(rank, node) in sent)
        ]
        assert ready, f"{len(waiting)} nodes wait for each other"
        for rank, node in draw.sample(ready, len(ready)):
            about, given = read_attributes(node), [values[rank, dep] for dep in node.data_deps]
            if node.type == COMM_SEND_NODE:
                start = about["msg_chunk_idx"]
                own = inputs[rank][start : start + about["msg_chunk_cnt"]]
                key = rank, about["comm_dst"], about["comm_tag"]
                assert key not in sent, "two messages with one tag"
                value = sent[key] = about["comm_size"], given[0] if given else own
                values[rank, node.id] = value[1]
            elif node.type == COMM_RECV_NODE:
                size, received = sent.pop(_find_message(rank, node))
                assert size == about["comm_size"] > 0
                values[rank, node.id] = received
                if not about.get("is_rrc"):
                    _store(ends[rank], node.id, about["msg_chunk_idx"], received)
            else:
                assert node.type == COMP_NODE
                about = read_attributes(_find_receive(files[rank], node))
                start = about["msg_chunk_idx"]
                if len(given) == 1:
                    given.append(inputs[rank][start : start + about["msg_chunk_cnt"]])
                values[rank, node.id] = given[0] + given[1]
                _store(ends[rank], node.id, start, values[rank, node.id])
            del waiting[rank, node.id]
    assert not sent, "a message is never received"
    return [{unit: number for unit, (_, number) in end.items()} for end in ends]


def _store(end: dict[int, tuple[int, int]], node: int, start: int, numbers: Numbers) -> None:
    """Store numbers unless a later node of the rank has stored some there."""
    for unit, number in enumerate(numbers.tolist(), start):
        if unit not in end or end[unit][0] < node:
            end[unit] = node, number


def _find_message(rank: int, node: Any) -> tuple[int, int, int]:
    about = read_attributes(node)
    return about["comm_src"], rank, about["comm_tag"]


def _find_receive(file: bytes, node: Any) -> Any:
    """Return the receive whose data an addition adds."""
    nodes = {each.id: each for each in _NODES.setdefault(file, read_trace(file)[1])}
    return next(nodes[dep] for dep in node.data_deps if nodes[dep].type == COMM_RECV_NODE)


_NODES: dict[bytes, list[Any]] = {}
