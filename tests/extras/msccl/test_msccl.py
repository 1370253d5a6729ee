"""MSCCL's algorithm files: schedules in, as `file:PATH`, and what is refused."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import topoplan
from topoplan.cli.synth import main

# A step of a thread block: type, source, target ("s3": chunk 3 of the scratch buffer), and the
# block and step that it waits for.
Row = tuple[str, str, str, str]
Blocks = dict[tuple[int, int, int], list[Row]]


def write(
    path: Path, collective: str, ranks: int, chunks: int, blocks: Blocks, in_place: bool = True
) -> str:
    """Write a file whose `blocks`, by GPU, receiver and sender, have these steps; return its name.

    Blocks of a GPU are numbered in their order.
    """
    of_gpu: dict[int, list[str]] = defaultdict(list)
    for (gpu, send, recv), rows in blocks.items():
        steps = ""
        for number, (kind, src, dst, waits) in enumerate(rows):
            block, step = waits.split(".") if waits else ("-1", "-1")
            (source, at), (target, to) = ((x[0], x[1:]) if x else ("i", "-1") for x in (src, dst))
            steps += (
                f'<step s="{number}" type="{kind}" srcbuf="{source}" srcoff="{at}" '
                f'dstbuf="{target}" dstoff="{to}" cnt="{int(kind != "nop")}" depid="{block}" '
                f'deps="{step}" hasdep="1"/>\n'
            )
        of_gpu[gpu].append(
            f'<tb id="{len(of_gpu[gpu])}" send="{send}" recv="{recv}" chan="0">\n{steps}</tb>'
        )
    gpus = "".join(
        f'<gpu id="{gpu}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="{chunks}">\n'
        + "\n".join(of_gpu[gpu])
        + "</gpu>\n"
        for gpu in range(ranks)
    )
    path.write_text(
        f'<algo name="a" proto="LL" nchannels="1" nchunksperloop="{chunks}" ngpus="{ranks}" '
        f'coll="{collective}" inplace="{int(in_place)}">\n{gpus}</algo>\n'
    )
    return f"file:{path}"


def ring(ranks: int) -> Blocks:
    """Return an allreduce: sums go round, and results a second time."""
    blocks: Blocks = {}
    for gpu in range(ranks):
        rows: list[Row] = [("s", f"i{gpu}", "", "")]
        for hop in range(1, 2 * ranks - 1):
            at = f"i{(gpu - hop) % ranks}"
            last = hop == 2 * ranks - 2
            kinds = "rrs" if hop < ranks - 1 else "rrcs" if hop == ranks - 1 else "rcs"
            rows.append(("r" if last else kinds, at, at, ""))
        blocks[gpu, (gpu + 1) % ranks, (gpu - 1) % ranks] = rows
    return blocks


def pairs(ranks: int) -> Blocks:
    """Return an allreduce: contributions into scratch, added up there, and results to all."""
    blocks: Blocks = {}
    for gpu in range(ranks):
        others = [r for r in range(ranks) if r != gpu]
        # The block of the first peer adds, once the others have what they are waiting for.
        adds: list[Row] = [("nop", "", "", f"{number}.1") for number in range(1, len(others))]
        adds += [("re", f"s{other}", f"i{gpu}", "") for other in others]
        end = 1 + len(adds)
        for number, other in enumerate(others):
            blocks[gpu, other, other] = [
                ("s", f"i{other}", "", ""),
                ("r", "", f"s{other}", ""),
                *(adds if number == 0 else []),
                ("s", f"i{gpu}", "", "" if number == 0 else f"0.{end}"),
                ("r", "", f"i{other}", ""),
            ]
    return blocks


def two_steps(groups: int = 2, each: int = 2) -> Blocks:
    """Return an alltoall on groups of GPUs: first inside a group, then between equal numbers."""
    blocks: Blocks = {}
    ranks = groups * each
    for gpu in range(ranks):
        mine, number = divmod(gpu, each)
        near, far = mine * each + 1 - number, (1 - mine) * each + number
        beyond = far // each * each + 1 - number
        blocks[gpu, near, near] = [
            ("s", f"i{near}", "", ""),
            ("s", f"i{beyond}", "", ""),
            ("r", "", f"o{near}", ""),
            ("r", "", f"s{near}", ""),
        ]
        blocks[gpu, far, far] = [
            ("cpy", f"i{gpu}", f"o{gpu}", ""),
            ("s", f"i{far}", "", ""),
            ("s", f"s{near}", "", "0.3"),
            ("r", "", f"o{far}", ""),
            ("r", "", f"o{beyond}", ""),
        ]
    return blocks


@pytest.mark.parametrize(
    ("name", "collective", "in_place", "make", "steps", "transfers", "gap"),
    [
        ("ring", "allreduce", True, ring, 6, 24, 0.0),
        ("pairs", "allreduce", True, pairs, 2, 24, 0.0),
        # Each GPU sends one chunk of its four twice, so four instead of three.
        ("two", "alltoall", False, lambda ranks: two_steps(), 2, 16, 0.25),
    ],
)
def test_a_file_is_planned_with_like_a_strategy(
    name: str,
    collective: topoplan.CollectiveName,
    in_place: bool,
    make: Callable[[int], Blocks],
    steps: int,
    transfers: int,
    gap: float,
    tmp_path: Path,
) -> None:
    """Steps, transfers and the gap of known algorithms on a switch, where they can be counted."""
    file = write(tmp_path / f"{name}.xml", collective, 4, 4, make(4), in_place)
    plan = topoplan.synthesize(collective, "switch:4", file)
    plan.verify()
    schedule = plan.entries[0].schedule
    assert (schedule.steps, len(schedule.transfers)) == (steps, transfers)
    assert schedule.strategy == f"file:{name}.xml"
    assert float(plan.gap_of(plan.entries[-1])) == pytest.approx(gap)


def test_topo_synth_saves_a_plan_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan is like any other: verified, with its gap on this topology, and read back."""
    file = write(tmp_path / "pairs.xml", "allreduce", 4, 4, pairs(4))
    arguments = ["--collective", "allreduce", "--strategy", file, "--json"]
    assert main([*arguments, "--topology", "switch:4", "-o", str(tmp_path / "plan.json")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["strategy"], answer["gap"], answer["verified"]) == ("file:pairs.xml", 0.0, True)
    assert topoplan.Plan.load(tmp_path / "plan.json").entries[0].schedule.steps == 2
    # GPUs do not forward, so a path of four has no route from its first to its third.
    assert main([*arguments, "--topology", "path:4"]) == 3
    assert "only other GPUs lie between them" in capsys.readouterr().err


def spoil(blocks: Blocks, gpu: int, number: int, row: int, *changed: Row) -> Blocks:
    """Return blocks in which one row of a GPU's block has become those of `changed`."""
    key = [key for key in blocks if key[0] == gpu][number]
    return {**blocks, key: [*blocks[key][:row], *changed, *blocks[key][row + 1 :]]}


# A GPU adds its neighbour's data to its own, and passes the same data on as it came.
PASSES_ON: Blocks = {
    (0, 1, 2): [("s", "i0", "", ""), ("r", "", "s0", ""), ("s", "s0", "", ""), ("r", "", "s1", "")],
    (1, 2, 0): [("s", "i0", "", ""), ("r", "", "s0", ""), ("s", "s0", "", ""), ("r", "", "s1", "")],
    (2, 0, 1): [("s", "i0", "", ""), ("r", "", "s0", ""), ("s", "s0", "", ""), ("r", "", "s1", "")],
}
for _rows in PASSES_ON.values():
    _rows += [("re", "s0", "i0", ""), ("re", "s1", "i0", "")]

# GPU 0 sends its sum to GPU 1 without waiting for the block that adds it up.
RACE: Blocks = {
    (0, 1, 1): [("r", "", "s0", ""), ("s", "i0", "", "")],
    (0, -1, -1): [("re", "s0", "i0", "0.0")],
    (1, 0, 0): [("s", "i0", "", ""), ("r", "", "i0", "")],
}


@pytest.mark.parametrize(
    ("blocks", "chunks", "code", "says"),
    [
        (RACE, 1, 5, "a dependency (depid, deps) is missing"),
        (spoil(pairs(3), 0, 0, 2), 3, 5, "reads chunk 2 of its buffer 's', where nothing is yet"),
        (spoil(pairs(3), 0, 0, 3, *[("re", "s1", "i0", "")] * 2), 3, 5, "adds the same data twice"),
        (spoil(pairs(3), 0, 0, 0, ("s", "i2", "", "")), 3, 5, "adds chunks 2 and 1"),
        (spoil(pairs(3), 0, 0, 4), 3, 5, "ends without the contribution of rank 2"),
        (spoil(ring(3), 1, 0, 4), 3, 2, "GPU 1 does not receive 1 of the messages"),
        ({key: rows[1:] for key, rows in ring(3).items()}, 3, 2, "waits forever"),
        (spoil(ring(3), 1, 0, 2, ("rrx", "i0", "i0", "")), 3, 2, "type='rrx': expected one of nop"),
        (spoil(ring(3), 1, 0, 0, ("s", "i7", "", "")), 3, 5, "reads chunk 7 of its buffer 'i'"),
        (PASSES_ON, 1, 3, "a GPU holds two values of chunk 0 at once"),
        (ring(4), 4, 2, "4 GPUs, and the topology has 3"),
    ],
)
def test_wrong_files_are_refused_in_one_line(
    blocks: Blocks,
    chunks: int,
    code: int,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Wrong sums, deadlocks and races have exit codes of their own, and nothing is printed."""
    file = write(
        tmp_path / "wrong.xml", "allreduce", max(g for g, *_ in blocks) + 1, chunks, blocks
    )
    ranks = min(3, 1 + max(gpu for gpu, *_ in blocks))
    arguments = ["--collective", "allreduce", "--topology", f"switch:{ranks}", "--strategy", file]
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert says in printed.err
    assert str(tmp_path / "wrong.xml") in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
