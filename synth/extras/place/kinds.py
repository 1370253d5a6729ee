"""What each kind of parallelism sends per training step, by the usual names of mesh dimensions.

Names are those of Megatron-LM, torchtitan, DeepSpeed and FSDP. The numbers of calls are assumptions
that hold for a transformer of 24 layers; results mention them whenever a job does not say its own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ....topo.errors import InputError
from ...sizes import parse_size

COLLECTIVES = ("allreduce", "allgather", "reduce-scatter", "alltoall", "sendrecv")

# Layers of a small transformer (GPT-3 XL and BERT-Large have 24): fewer calls than a large one's.
_LAYERS = 24
# DistributedDataParallel's default bucket_cap_mb.
_BUCKET_BYTES = 25 << 20
# Microbatches per stage from which a pipeline's bubble is small (GPipe, Huang et al. 2019).
_MICROBATCHES_PER_STAGE = 4
# At most six digits, so that products stay small enough to print.
_VALUE = re.compile(
    r"(?:(?P<calls>[0-9]{1,6})x)?(?:(?P<collective>[a-z-]+):)?(?:(?P<late>[0-9]{1,6})x)?"
    r"(?P<size>[^:x]+)"
)


@dataclass(frozen=True)
class Kind:
    """What the groups of one kind of parallelism (such as "tp") communicate in a step.

    `collectives` are (name, factor on the number of calls), for sizes given without a collective.
    `reason` says where the assumed number of calls comes from. A size given without a number of
    calls is that of all calls together with `shares` (but for that factor), otherwise that of each
    call. `need`, 0 to 2, is how much the groups need to stay inside a host; at 0 they are meant to
    span hosts.
    """

    collectives: tuple[tuple[str, int], ...]
    reason: str
    shares: bool = False
    need: int = 2


_DATA = Kind((("allreduce", 1),), "buckets of 25 MiB", shares=True, need=0)
_SHARDED = Kind(
    (("allgather", 2), ("reduce-scatter", 1)), f"one per layer, {_LAYERS} layers", True, need=1
)
_TENSOR = Kind((("allreduce", 1),), f"4 per layer, {_LAYERS} layers")
_CONTEXT = Kind((("allgather", 1),), f"2 per layer, {_LAYERS} layers")
_EXPERT = Kind((("alltoall", 1),), f"4 per layer, {_LAYERS} layers")
_PIPELINE = Kind((("sendrecv", 1),), "microbatches, 4 per stage", need=0)
_KINDS = {
    "dp ddp data replicate dp-replicate": _DATA,
    "fsdp shard dp-shard zero": _SHARDED,
    "tp sp tensor model mp": _TENSOR,
    "cp context": _CONTEXT,
    "ep expert moe": _EXPERT,
    "pp pipe pipeline stage": _PIPELINE,
}
_KIND_OF = {name: kind for names, kind in _KINDS.items() for name in names.split()}
_CALLS = {_TENSOR: 4 * _LAYERS, _EXPERT: 4 * _LAYERS, _CONTEXT: 2 * _LAYERS, _SHARDED: _LAYERS}


@dataclass(frozen=True)
class Calls:
    """A collective in a step: the bytes of its buffers in all calls together, and their number.

    `reason` is empty if the job states the number, else the assumption behind it.
    """

    collective: str
    size_bytes: int
    calls: int
    reason: str


def read_calls(name: str, value: str, ranks: int, text: str) -> Iterator[Calls]:
    """Yield the calls that `value` (`96x64M`, `allreduce:1G`, `96xallreduce:64M`) stands for.

    `name` is the dimension, `ranks` its size, and `text` what to quote in errors. Raise InputError
    if the value is malformed.
    """
    match = _VALUE.fullmatch(value)
    kind = _find_kind(name)
    if (
        match is None
        or (match["collective"] or "allreduce") not in COLLECTIVES
        or (match["calls"] and match["late"])
        or not (match["collective"] or kind)
    ):
        which = f" ({name} is no known kind of parallelism)" if match and not kind else ""
        raise InputError(
            f"{text}: {value!r} is not COLLECTIVE:BYTES{which}; expected one of "
            f"{', '.join(COLLECTIVES)}, such as allreduce:64M, or 96xallreduce:64M for 96 calls",
            parameter="traffic",
        )
    size, stated = parse_size(match["size"]), match["calls"] or match["late"]
    if stated is not None and not int(stated):
        raise InputError(
            f"{text}: {name} has 0 calls; expected at least 1, or leave {name} out",
            parameter="traffic",
        )
    named = ((match["collective"], 1),) if match["collective"] else kind.collectives if kind else ()
    for collective, times in named:
        if stated is not None:
            yield Calls(collective, int(stated) * times * size, int(stated) * times, "")
        elif kind is None:
            yield Calls(collective, size, 1, "")
        else:
            calls = _count_calls(kind, size, ranks) * times
            each = times if kind.shares else calls
            yield Calls(collective, each * size, calls, kind.reason)


def need_of(name: str) -> int:
    """Return how much a dimension's groups need to stay inside a host: 2 (most) to 0.

    Unknown names count as 2.
    """
    kind = _find_kind(name)
    return 2 if kind is None else kind.need


def _find_kind(name: str) -> Kind | None:
    return _KIND_OF.get(name.lower().replace("_", "-"))


def _count_calls(kind: Kind, size_bytes: int, ranks: int) -> int:
    if kind is _DATA:
        return max(1, -(-size_bytes // _BUCKET_BYTES))
    return _MICROBATCHES_PER_STAGE * ranks if kind is _PIPELINE else _CALLS[kind]
