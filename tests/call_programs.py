"""Programs of calls to torch.distributed as data: who calls what when, and whether that must end.

A program says for every rank and thread which calls it makes in which order. `find_stuck` plays it
by the strictest rules that torch allows, so a program that ends there must end on every backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

MESSAGE = "message"
KEY = "key"
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce_scatter_tensor", "reduce")
# Steps that make a call: without waiting, waiting, and without ever waiting.
POSTS = ("start", "run", "drop")
# Steps that wait for a call that was started: by its work, or by asking until it is done.
WAITS = ("wait", "poll")


@dataclass(frozen=True)
class Operation:
    """A collective, a message from `root` to `peer`, or a key of the store that `root` sets.

    `numel` counts the elements of one member's part. Ranks are those of the world.
    """

    kind: str
    group: int = 0
    numel: int = 0
    dtype: str = "float32"
    reduction: str = "sum"
    root: int = -1
    peer: int = -1
    tag: int = 0


@dataclass(frozen=True)
class Step:
    """What a thread does next with the operation `number`; `pause` sleeps `number` ms."""

    action: str
    number: int


Groups = tuple[tuple[int, ...], ...]
# The steps of one thread of one rank, in order.
Strand = tuple[Step, ...]


@dataclass(frozen=True)
class Program:
    """`strands[rank][thread]` are the steps; odd ranks start their threads in reverse order.

    Thread 0 is the main one, the others start before it does anything, `skew_ms` apart.
    """

    name: str
    groups: Groups
    operations: tuple[Operation, ...]
    strands: tuple[tuple[Strand, ...], ...]
    skew_ms: int = 0

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.strands)

    def members(self, operation: Operation) -> tuple[int, ...]:
        """Return the ranks whose calls make an operation complete."""
        if operation.kind == MESSAGE:
            return (operation.root, operation.peer)
        return (operation.root,) if operation.kind == KEY else self.groups[operation.group]

    def to_json(self) -> dict[str, Any]:
        """Return the program as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Program:
        """Return the program of plain data."""
        strands = tuple(tuple(map(_to_strand, of_rank)) for of_rank in data["strands"])
        operations = tuple(Operation(**operation) for operation in data["operations"])
        groups = tuple(tuple(group) for group in data["groups"])
        return cls(data["name"], groups, operations, strands, data["skew_ms"])

    def __str__(self) -> str:
        """Return the program as text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"program {self.name}: {self.ranks} ranks, groups {list(map(list, self.groups))}"
        for number, operation in enumerate(self.operations):
            yield f"  {number} = {_describe(operation)}"
        for rank, strands in enumerate(self.strands):
            for thread, strand in enumerate(strands):
                steps = ", ".join(f"{step.action} {step.number}" for step in strand)
                yield f"  rank {rank} thread {thread}: {steps or 'nothing'}"


def _to_strand(steps: list[dict[str, Any]]) -> Strand:
    return tuple(Step(**step) for step in steps)


def parse_steps(text: str) -> Strand:
    """Return the steps of a text such as `start 0, run 1, wait 0`."""
    words = [part.split() for part in text.split(",") if part.strip()]
    return tuple(Step(action, int(number)) for action, number in words)


def find_stuck(program: Program) -> list[str]:
    """Return where threads stay for ever by the strictest rules; empty if the program ends.

    A started call waits for nobody. Waiting for it, or making it synchronously, waits until all
    members have made it: also broadcasts and messages, which a backend may let through earlier.
    Raises ValueError if members make the calls of a group in different orders.
    """
    posted: set[tuple[int, int]] = set()
    done = {(r, t): 0 for r, strands in enumerate(program.strands) for t in range(len(strands))}
    _check_order(program)

    def advance(rank: int, thread: int) -> bool:
        step = program.strands[rank][thread][done[rank, thread]]
        if step.action in POSTS:
            posted.add((step.number, rank))
        if step.action in ("run", *WAITS):
            members = program.members(program.operations[step.number])
            if not all((step.number, member) in posted for member in members):
                return False
        done[rank, thread] += 1
        return True

    def left() -> list[tuple[int, int]]:
        return [(r, t) for (r, t), count in done.items() if count < len(program.strands[r][t])]

    moved = True
    while moved:
        moved = any(advance(rank, thread) for rank, thread in left())
    return [
        f"rank {r} thread {t}: {step.action} {step.number}"
        for r, t in left()
        for step in [program.strands[r][t][done[r, t]]]
    ]


def _check_order(program: Program) -> None:
    """Raise ValueError unless all members of each group make its calls in the same order."""
    for group, members in enumerate(program.groups):
        orders = {
            rank: [
                step.number
                for strand in program.strands[rank]
                for step in strand
                if step.action in POSTS
                and program.operations[step.number].kind in COLLECTIVES
                and program.operations[step.number].group == group
            ]
            for rank in members
        }
        if len({tuple(order) for order in orders.values()}) > 1:
            raise ValueError(f"{program.name}: group {group} is called in the orders {orders}")


def _describe(operation: Operation) -> str:
    if operation.kind == KEY:
        return f"key set by rank {operation.root}"
    where = f"on group {operation.group}"
    what = f"{operation.numel} x {operation.dtype}"
    if operation.kind == MESSAGE:
        ends = f"from {operation.root} to {operation.peer}, tag {operation.tag}"
        return f"message {ends} {where}, {what}"
    more = f" {operation.reduction}" if operation.kind in REDUCING else ""
    more += f" root {operation.root}" if operation.kind in ROOTED else ""
    return f"{operation.kind} {where}" + ("" if operation.kind == "barrier" else f", {what}{more}")
