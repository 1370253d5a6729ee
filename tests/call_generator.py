"""Random programs of calls that must end, and the ones by which orders of calls were first broken.

Each operation of a random program has a time. Run by these times, with every call synchronous, the
program ends. A member may also start its call earlier, which delays nobody, or wait for it later,
when all members have made it; so the program still ends, whatever mixture of these the ranks have.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from call_programs import (
    COLLECTIVES,
    KEY,
    MESSAGE,
    REDUCING,
    ROOTED,
    Groups,
    Operation,
    Program,
    Step,
    Strand,
    find_stuck,
    parse_steps,
)

# A step and its time, in operations.
Timed = tuple[float, Step]
# How often each kind comes: DDP's own more often, so that sizes come again and are settled.
_KINDS = dict.fromkeys(COLLECTIVES, 2) | {"all_reduce": 8, MESSAGE: 6, KEY: 2}
# Elements a part: below the backend's least bytes, just below 1 KiB, and sizes that race.
_NUMELS = (16, 240, 16384, 65536)
# Operations by which a call starts earlier, or is waited for later, on average.
_SPREAD = 3.0
# Kinds of which gloo's works are never completed before somebody waits for them.
_UNPOLLED = (MESSAGE, "reduce_scatter_tensor")
_NEW_SHAPE = 0.25
_LATE_PAUSE = 0.08
_LONGEST_PAUSE_ms = 15


def generate(seed: int, ranks: int) -> Program:
    """Return the random program of a seed; it ends by `find_stuck`."""
    random = Random(f"{seed} of {ranks}")
    groups = _draw_groups(random, ranks)
    threads = random.choice((1, 1, 1, 2, 3))
    thread_of = [0, *(random.randrange(threads) for _ in groups[1:])]
    operations = _draw_operations(random, ranks, groups)
    strands = _draw_strands(random, ranks, groups, thread_of, operations)
    skew_ms = random.choice((0, 0, 20))
    program = Program(f"seed {seed}", groups, tuple(operations), strands, skew_ms)
    if stuck := find_stuck(program):
        raise AssertionError(f"{program}\ndoes not end: {stuck}")
    return program


def _draw_groups(random: Random, ranks: int) -> Groups:
    world = tuple(range(ranks))
    groups = [world]
    for _ in range(random.randint(0, 3)):
        size = random.choice((ranks, random.randint(2, ranks)))
        groups.append(tuple(sorted(random.sample(world, size))))
    return tuple(groups)


def _draw_operations(random: Random, ranks: int, groups: Groups) -> list[Operation]:
    """Draw operations in the order of their times; most of them come again."""
    shapes = [_draw_operation(random, ranks, groups) for _ in range(random.randint(1, 4))]
    operations = []
    for _ in range(random.randint(6, 24)):
        again = random.random() >= _NEW_SHAPE
        shape = random.choice(shapes) if again else _draw_operation(random, ranks, groups)
        operations.append(shape)
    return operations


def _draw_operation(random: Random, ranks: int, groups: Groups) -> Operation:
    kind = random.choices(list(_KINDS), list(_KINDS.values()))[0]
    if kind == KEY:
        return Operation(KEY, root=random.randrange(ranks))
    group = random.randrange(len(groups))
    root, peer = random.sample(groups[group], 2)
    numel = 0 if kind == "barrier" else random.choice(_NUMELS)
    dtype = random.choice(("float32", "float32", "float32", "float64", "int64"))
    operation = Operation(kind, group, numel, dtype)
    if kind == MESSAGE:
        return replace(operation, root=root, peer=peer, tag=random.choice((0, 0, 5)))
    if kind in REDUCING:
        reduction = random.choice(("sum", "sum", "max", "min", "product"))
        operation = replace(operation, reduction=reduction)
    return replace(operation, root=root) if kind in ROOTED else operation


def _draw_strands(
    random: Random,
    ranks: int,
    groups: Groups,
    thread_of: list[int],
    operations: list[Operation],
) -> tuple[tuple[Strand, ...], ...]:
    threads = max(thread_of) + 1
    timed: list[list[list[Timed]]] = [[[] for _ in range(threads)] for _ in range(ranks)]
    latest: dict[tuple[object, ...], float] = {}
    for number, operation in enumerate(operations):
        thread = 0 if operation.kind == KEY else thread_of[operation.group]
        for rank in _list_callers(random, operation, ranks, groups):
            times = _draw_times(random, number, operation, rank)
            (posted, step), *waits = times
            if operation.kind != KEY:
                queue = _queue_of(operation, rank)  # its calls have to start in their order
                posted = latest[queue] = max(posted, latest.get(queue, posted - 1) + 1e-9)
            timed[rank][thread] += [(posted, step), *waits]
            if random.random() < _LATE_PAUSE:
                pause = Step("pause", random.randint(1, _LONGEST_PAUSE_ms))
                timed[rank][thread].append((number + random.random(), pause))
    return tuple(tuple(map(_order_by_time, of_rank)) for of_rank in timed)


def _order_by_time(timed: list[Timed]) -> Strand:
    return tuple(step for _, step in sorted(timed, key=lambda one: one[0]))


def _list_callers(random: Random, operation: Operation, ranks: int, groups: Groups) -> list[int]:
    if operation.kind == MESSAGE:
        return [operation.root, operation.peer]
    if operation.kind == KEY:
        others = [rank for rank in range(ranks) if rank != operation.root]
        return [operation.root, *random.sample(others, random.randint(1, len(others)))]
    return list(groups[operation.group])


def _queue_of(operation: Operation, rank: int) -> tuple[object, ...]:
    """Return what a rank's calls are ordered by: the group, or the messages of a pair and tag."""
    if operation.kind == MESSAGE:
        return (rank, operation.group, operation.root, operation.peer, operation.tag)
    return (rank, operation.group)


def _draw_times(random: Random, number: int, operation: Operation, rank: int) -> list[Timed]:
    """Draw when a rank makes its call, the first step returned, and when it waits for it."""
    earlier = number - random.expovariate(1 / _SPREAD)
    later = number + random.expovariate(1 / _SPREAD)
    if operation.kind == KEY:
        return [(earlier if rank == operation.root else later, Step("run", number))]
    form = random.random()
    if form < 0.35:
        return [(number, Step("run", number))]
    if form < 0.45 and operation.kind != MESSAGE:  # torch requires that messages are waited for
        return [(earlier, Step("drop", number))]
    start = random.choice((float(number), earlier))
    action = "poll" if operation.kind not in _UNPOLLED and random.random() < 0.15 else "wait"
    return [(start, Step("start", number)), (later, Step(action, number))]


def list_named(ranks: int = 2) -> list[Program]:
    """Return programs in which an asynchronous call must not block its caller, by hand."""
    world = tuple(range(ranks))
    calls = (Operation("all_reduce", 0, 16384), Operation(MESSAGE, 0, 8, root=0, peer=1))
    send_first = [
        "start 0, run 1, wait 0",
        "run 1, start 0, wait 0",
        *["start 0, wait 0"] * (ranks - 2),
    ]
    return [
        _name(
            "two_groups",
            (world, world, world),
            (Operation("all_reduce", 1, 16384), Operation("all_reduce", 2, 16384)),
            [
                "start 0, start 1, wait 0, wait 1",
                *["start 1, start 0, wait 1, wait 0"] * (ranks - 1),
            ],
        ),
        _name("then_send", (world,), calls, send_first),
        _name(
            "new_size",
            (world,),
            (replace(calls[0], numel=32768), calls[1], calls[0], Operation("barrier")),
            [f"run 2, run 3, {steps}" for steps in send_first],
        ),
        _name(
            "warm",
            (world,),
            (*calls, *[calls[0]] * 3, Operation("barrier")),
            [f"run 2, run 3, run 4, run 5, {steps}" for steps in send_first],
        ),
        _name(
            "early_root",
            (world,),
            (Operation("broadcast", 0, 16384, root=0), calls[1]),
            ["start 0, run 1, wait 0", "run 1, run 0", *["run 0"] * (ranks - 2)],
        ),
        _name(
            "other_thread",
            (world,),
            (calls[0], Operation(KEY, root=0)),
            ["start 0, run 1, wait 0", *["run 1, run 0"] * (ranks - 1)],
        ),
        *[_make_threads(world, skew_ms) for skew_ms in (0, 100)],
    ]


def _make_threads(world: tuple[int, ...], skew_ms: int) -> Program:
    """Return two groups of two threads, which odd ranks start in the other order."""
    turns = 20
    operations = [Operation("all_reduce", 1 + k // turns, 65536) for k in range(2 * turns)]
    parts = [", ".join(f"run {k}" for k in range(first, first + turns)) for first in (0, turns)]
    strands = ((), *map(parse_steps, parts))
    groups = (world, world, world)
    name = f"threads skew {skew_ms} ms"
    return Program(name, groups, tuple(operations), (strands,) * len(world), skew_ms)


def _name(
    name: str,
    groups: Groups,
    operations: tuple[Operation, ...],
    steps: list[str],
) -> Program:
    return Program(name, groups, operations, tuple((parse_steps(text),) for text in steps))
