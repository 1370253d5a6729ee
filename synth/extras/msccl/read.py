"""Read MSCCL's XML: what the thread blocks of each GPU do, step by step.

The format is that of microsoft/msccl-tools (`msccl/language/ir.py`), as the interpreters of MSCCL
and RCCL read it (`src/misc/msccl/msccl_parser.cc`). A thread block sends to at most one GPU and
receives from at most one, over a channel; its steps run in order. A step may wait for a step of
another block of its GPU (`depid`, `deps`). Data lies in three buffers: input, output, scratch.
"""

from dataclasses import dataclass
from functools import cached_property

from ....topo.errors import InfeasibleError, InputError
from ....topo.files import read_file
from ....topo.formats.safe_xml import MAX_CHARACTERS, Element, parse_xml
from ...ir.collective import COLLECTIVES, Chunk, Collective, spell_collective

INPUT, OUTPUT, SCRATCH = "i", "o", "s"
_BUFFERS = (INPUT, OUTPUT, SCRATCH)
# What each type of step does: receive, add (what lies at `source`), store, send.
RECEIVE, ADD, STORE, SEND = "receive", "add", "store", "send"
ACTIONS: dict[str, frozenset[str]] = {
    "nop": frozenset(),
    "s": frozenset({SEND}),
    "r": frozenset({RECEIVE, STORE}),
    "rcs": frozenset({RECEIVE, STORE, SEND}),
    "rrc": frozenset({RECEIVE, ADD, STORE}),
    "rrs": frozenset({RECEIVE, ADD, SEND}),
    "rrcs": frozenset({RECEIVE, ADD, STORE, SEND}),
    "cpy": frozenset({STORE}),
    "re": frozenset({ADD, STORE}),
}
# Far above any file known (the interpreters run at most 1,024), and small enough to replay.
_MAX_CHUNKS = 1 << 14


@dataclass(frozen=True)
class BlockStep:
    """One step of a thread block, on `count` chunks.

    `source` and `target` are (buffer, number of the first chunk in it), on the block's own GPU.
    `actions` are what it does: some of RECEIVE, ADD, STORE and SEND. `waits_for` is (block of that
    GPU, number of its step), None if there is none. `element` is the XML, for errors.
    """

    element: Element
    actions: frozenset[str]
    source: tuple[str, int]
    target: tuple[str, int]
    count: int
    waits_for: tuple[int, int] | None


@dataclass(frozen=True)
class Block:
    """A thread block: the GPUs that it sends to and receives from (-1: none), and its steps.

    It is block `number` of GPU `gpu`, and uses channel number `channel` to its peers. `element` is
    the XML, for errors.
    """

    element: Element
    gpu: int
    number: int
    sends_to: int
    receives_from: int
    channel: int
    steps: tuple[BlockStep, ...]


@dataclass(frozen=True)
class Algorithm:
    """The algorithm of the file `where` for one collective; a block has `block_chunks` chunks.

    A block of the buffer is all of it, or the part of one rank (for alltoall, of a pair of ranks).
    `in_place`: input and output share memory, as for a call with one buffer. `blocks` are the
    thread blocks.
    """

    where: str
    collective: Collective
    block_chunks: int
    in_place: bool
    blocks: tuple[Block, ...]

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks of the collective, in the order of its buffers."""
        return self.collective.even_chunks(self.block_chunks)


def read_algorithm(path: str, collective: Collective) -> Algorithm:
    """Read the algorithm of the file `path` for `collective`, which gives the root.

    Raise InputError if the file is not one of MSCCL's, is for another collective or number of
    ranks, or contradicts itself, InfeasibleError if it is for a collective that schedules lack.
    """
    root = parse_xml(_read_text(path), path)
    if root.tag != "algo":
        raise InputError(f"{path}: <{root.tag}> instead of <algo>; expected an XML file of MSCCL")
    named = spell_collective(root.get("coll") or "")
    if named not in COLLECTIVES:
        raise InfeasibleError(
            f"{path}: an algorithm for {root.get('coll')!r}; schedules are for one of "
            f"{', '.join(COLLECTIVES)}"
        )
    if named != collective.name:
        raise InputError(f"{path}: an algorithm for {named}, not for {collective.name}")
    gpus = sorted(root.select("gpu"), key=lambda gpu: _number(gpu, "id"))
    ranks = collective.ranks
    if [_number(gpu, "id") for gpu in gpus] != list(range(ranks)):
        raise InputError(
            f"{path}: {len(gpus)} GPUs, and the topology has {ranks}; expected <gpu> with the ids "
            f"0 to {ranks - 1}"
        )
    # The chunks of one GPU's buffer, which for most collectives has a part for each rank.
    chunks = _number(root, "nchunksperloop", 1)
    parts = ranks if len(collective.even_chunks(1)) > 1 else 1
    if chunks % parts or chunks > _MAX_CHUNKS:
        raise root.make_error(
            f"nchunksperloop={chunks}: expected a multiple of {parts}, at most {_MAX_CHUNKS}"
        )
    return Algorithm(
        path,
        collective,
        chunks // parts,
        root.get("inplace") == "1" and root.get("outofplace") != "1",
        tuple(
            _read_block(element, rank, ranks, chunks)
            for rank, gpu in enumerate(gpus)
            for element in gpu.select("tb")
        ),
    )


def _read_text(path: str) -> str:
    try:
        raw = read_file(path, MAX_CHARACTERS + 1)
        if len(raw) > MAX_CHARACTERS:
            raise InputError(f"{path}: more than {MAX_CHARACTERS >> 20} MiB; not a file of MSCCL")
        return raw.decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected an XML file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not text in UTF-8; expected an XML file of MSCCL") from None


def _number(element: Element, key: str, minimum: int = 0) -> int:
    number = element.get_integer(key, minimum=minimum)
    if number is None:
        raise element.make_error(f"has no {key}; expected a whole number")
    return number


def _read_block(element: Element, gpu: int, ranks: int, chunks: int) -> Block:
    sends_to, receives_from = (_number(element, key, -1) for key in ("send", "recv"))
    for peer in (sends_to, receives_from):
        if peer == gpu or peer >= ranks:
            raise element.make_error(f"of GPU {gpu} names GPU {peer}; expected another, or -1")
    steps = sorted(element.select("step"), key=lambda step: _number(step, "s"))
    if [_number(step, "s") for step in steps] != list(range(len(steps))):
        raise element.make_error(f"of GPU {gpu} has steps that do not count from 0 up")
    read = tuple(_read_step(step, chunks * ranks) for step in steps)
    for step in read:
        for action, peer in ((SEND, sends_to), (RECEIVE, receives_from)):
            if action in step.actions and peer < 0:
                raise step.element.make_error(
                    f"{action}s, but its thread block names no GPU for that"
                )
    number, channel = _number(element, "id"), _number(element, "chan")
    return Block(element, gpu, number, sends_to, receives_from, channel, read)


def _read_step(element: Element, most_chunks: int) -> BlockStep:
    """Return a step; `most_chunks` limits its count, so that a wrong one is refused early."""
    actions = ACTIONS.get(element.get("type") or "")
    if actions is None:
        raise element.make_error(
            f"type={element.get('type')!r}: expected one of {', '.join(ACTIONS)}"
        )
    source, target = (
        (element.get(f"{end}buf") or "", _number(element, f"{end}off", -1))
        for end in ("src", "dst")
    )
    # A receiver's source is at the sender, unless it adds what lies there on its own GPU.
    reads = bool(actions) and (RECEIVE not in actions or ADD in actions)
    for used, (buffer, offset) in ((reads, source), (STORE in actions, target)):
        if used and (buffer not in _BUFFERS or offset < 0):
            raise element.make_error(
                f"is at {buffer!r}, {offset}; expected a buffer of {', '.join(_BUFFERS)} and a "
                "chunk from 0 up"
            )
    count = _number(element, "cnt") if actions else 0
    if count > most_chunks:
        raise element.make_error(f"cnt={count}: expected at most {most_chunks} chunks")
    block, step = (_number(element, key, -1) for key in ("depid", "deps"))
    return BlockStep(element, actions, source, target, count, None if block < 0 else (block, step))
