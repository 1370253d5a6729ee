"""Whether a commit is slower than another one, or holds more memory.

    python -m benchmarks two_commits OLD NEW                    all cells: half an hour on two cores
    python -m benchmarks two_commits OLD NEW --cases messages,hook --ranks 2 --sizes 4K,1M
    python -m benchmarks two_commits OLD NEW --results pairs.jsonl --turns 30
                                                                goes on with what the file has

Each commit is cloned, built and installed into an environment of its own, which sees the libraries
beside this Python. A turn of a case starts the ranks of both commits, lets them take turns in
making the same calls, and ends them; its pair is each commit's median. Both run this file, by
public names alone, and the same plan, which OLD makes.

Cases: allreduce over messages and in shared memory by plans alone, through the backend "topo", and
a step of DDP with the hook (`hook`, a million parameters); the seconds of starting the
backend and its first calls, races included (`first`); what a rank holds after calls (`memory`).
A ratio is new / old: the median over the turns, and the interval between two of them in which the
true median lies with 95 %, whatever the distribution. A cell is worse if the whole interval is
above 1.02; exit code 1 then. With fewer than 6 turns nothing is certain enough for a verdict. Of 40
cells one may be worse by chance: add turns to it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Results, Table, list_of, make_parser

ROOT = Path(__file__).resolve().parents[1]
SIZES = {"4K": 4 << 10, "64K": 64 << 10, "1M": 1 << 20, "8M": 8 << 20, "64M": 64 << 20}
CALLS, ONCE = ("messages", "shared", "backend", "hook"), ("first", "memory")
# Ratios above which a cell is worse, and below which it is better.
WORSE, BETTER = 1.02, 0.98
_LEVEL = 0.95
# Alternations in a turn; each has calls for so long, but at least some.
_ROUNDS, _ROUND_S, _LEAST_CALLS, _MOST_CALLS = 5, 0.05, 3, 200
# Of the model that the hook's step trains: 1 million parameters.
_WIDTH, _LAYERS = 512, 4
_FLOAT_BYTES = 4
# Longest wait of a rank for the others: four ranks on two busy cores import torch in 30 s.
_TIMEOUT_S = 180
COLUMNS = (
    ("case", "case", "<9"),
    ("ranks", "ranks", ">5"),
    ("size", "size", ">5"),
    ("old", "old", ">11.4g"),
    ("new", "new", ">11.4g"),
    ("unit", "", "<3"),
    ("ratio", "ratio", ">7.3f"),
    ("low", "low", ">7.3f"),
    ("high", "high", ">7.3f"),
    ("turns", "turns", ">5"),
    ("verdict", "verdict", "<9"),
)
_KEYS = ("old_commit", "new_commit", "case", "ranks", "size", "turn")


@dataclass(frozen=True)
class Interval:
    """The median of ratios, and the interval that the true one is in with probability `level`."""

    median: float
    low: float
    high: float
    level: float

    @property
    def verdict(self) -> str:
        """What the interval says: worse, better, same (within 2 %), or open."""
        if self.level < _LEVEL:
            return "too few"
        if self.low > WORSE:
            return "worse"
        if self.high < BETTER:
            return "better"
        return "same" if self.low >= BETTER and self.high <= WORSE else "open"


def find_interval(ratios: Sequence[float]) -> Interval:
    """Return the median and its interval of at least 95 % between two of the ratios.

    The interval between the k-th smallest and the k-th largest of n leaves the median out if fewer
    than k lie on one side of it: 2 P(B < k) for B binomial with n and 1/2. With too few ratios it
    is between the smallest and the largest, with its own, lower level.
    """
    ordered, n = sorted(ratios), len(ratios)
    outside, level, place = 0.0, 0.0, 0
    for k in range(n // 2 + n % 2):
        outside += math.comb(n, k) * 0.5**n
        if k and 1 - 2 * outside < _LEVEL:
            break
        level, place = 1 - 2 * outside, k
    return Interval(statistics.median(ordered), ordered[place], ordered[n - 1 - place], level)


def main() -> int:
    """Print the table; return 1 if a cell is worse. Or be a rank."""
    args = _parse_arguments()
    if args.rank is not None:
        be_rank(args.rank, args.plan)
        return 0
    commits = [_name_commit(commit) for commit in (args.old, args.new)]
    results = Results(args.results, _KEYS)
    with tempfile.TemporaryDirectory(prefix="two-commits-") as name:
        folder = Path(name)
        pythons = [
            make_environment(commit, folder / side)
            for commit, side in zip(commits, ("old", "new"), strict=True)
        ]
        plans = {ranks: _make_plan(pythons[0], ranks, folder) for ranks in args.ranks}
        for turn in range(args.turns):
            for case in args.cases:
                for ranks in args.ranks:
                    key = {"old_commit": commits[0], "new_commit": commits[1], "turn": turn}
                    key |= {"case": case, "ranks": ranks}
                    sizes = args.sizes if case in ("messages", "shared", "backend") else ["-"]
                    missing = [size for size in sizes if not results.has(**key, size=size)]
                    if missing:
                        print(f"# turn {turn}: {case}, {ranks} ranks", file=sys.stderr, flush=True)
                        for pair in measure(case, ranks, missing, pythons, plans[ranks], turn):
                            results.add({**key, **pair})
    table = Table(COLUMNS, as_json=args.json)
    for row in summarize(results.rows, commits):
        table.add(row)
    table.end(old_commit=commits[0], new_commit=commits[1])
    return int(any(row["verdict"] == "worse" for row in table.rows))


def summarize(rows: Sequence[dict[str, Any]], commits: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the row of each cell that was measured for two commits."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if [row["old_commit"], row["new_commit"]] == list(commits):
            cells.setdefault((row["case"], row["ranks"], row["size"]), []).append(row)
    for (case, ranks, size), pairs in cells.items():
        interval = find_interval([pair["new"] / pair["old"] for pair in pairs])
        medians = {side: statistics.median(pair[side] for pair in pairs) for side in ("old", "new")}
        yield {
            "case": case,
            "ranks": ranks,
            "size": size,
            **medians,
            "unit": {"first": "s", "memory": "MiB"}.get(case, "us"),
            "ratio": interval.median,
            "low": interval.low,
            "high": interval.high,
            "turns": len(pairs),
            "level": interval.level,
            "verdict": interval.verdict,
        }


# Environments


def make_environment(commit: str, folder: Path) -> str:
    """Return the Python of an environment in `folder` that has topoplan as of a commit."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from check_package import BUILD, install

    source = folder / "source"
    print(f"# building {commit[:12]}", file=sys.stderr, flush=True)
    _run(["git", "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(source)], ROOT)
    _run(["git", "checkout", "--quiet", commit], source)
    _run([sys.executable, "-c", BUILD, "wheel", str(folder)], source)
    (wheel,) = folder.glob("*.whl")
    return install(wheel, folder / "environment")


def _run(command: Sequence[str], folder: Path) -> str:
    """Return what a command prints; SystemExit with its errors where it fails."""
    done = subprocess.run(
        command, cwd=folder, env=_clean_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def _clean_environment() -> dict[str, str]:
    """Return the environment without what would lead to another checkout, or another behaviour."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "MYPYPATH") and not name.startswith("TOPOPLAN_")
    }


def _name_commit(name: str) -> str:
    return _run(["git", "rev-parse", "--verify", f"{name}^{{commit}}"], ROOT).strip()


def _make_plan(python: str, ranks: int, folder: Path) -> Path:
    path = folder / f"plan-{ranks}.json"
    code = (
        "import sys, topoplan; "
        "topoplan.synthesize('allreduce', f'full:{sys.argv[1]}').save(sys.argv[2])"
    )
    _run([python, "-c", code, str(ranks), str(path)], folder)
    return path


# Turns


class Side:
    """The ranks of one commit, which answer requests one after the other."""

    def __init__(self, python: str, case: str, ranks: int, plan: Path, folder: Path) -> None:
        folder.mkdir()
        self.errors = [folder / f"{rank}.err" for rank in range(ranks)]
        self.ranks = []
        for rank, errors in enumerate(self.errors):
            own = {
                **_clean_environment(),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "TOPOPLAN_CACHE": str(folder / "cache"),
                "MEETING": str(folder / "meeting"),
            }
            command = [python, __file__, "--rank", case, "--plan", str(plan), "-", "-"]
            with errors.open("wb") as file:
                started = subprocess.Popen(
                    command,
                    env=own,
                    cwd=folder,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    text=True,
                )
            self.ranks.append(started)

    def ask(self, request: object) -> float:
        """Send all ranks a request; return the largest of their answers."""
        for rank in self.ranks:
            assert rank.stdin is not None
            with suppress(BrokenPipeError):  # `wait` says what a rank that has ended printed
                rank.stdin.write(json.dumps(request) + "\n")
                rank.stdin.flush()
        return self.wait()

    def wait(self) -> float:
        """Return the largest of what all ranks answer next."""
        answers = []
        for number, rank in enumerate(self.ranks):
            assert rank.stdout is not None
            line = rank.stdout.readline()
            if not line:
                text = self.errors[number].read_text("utf-8", "replace")
                raise SystemExit(f"{self.errors[number]}: the rank ended:\n{text[-3000:]}")
            answers.append(float(line))
        return max(answers)

    def end(self) -> None:
        """End all ranks."""
        for rank in self.ranks:
            rank.kill()
            rank.communicate()


@contextmanager
def _start_sides(pythons: Sequence[str], case: str, ranks: int, plan: Path) -> Iterator[list[Side]]:
    sides: list[Side] = []
    with tempfile.TemporaryDirectory(prefix="two-commits-") as name:
        try:
            for number, python in enumerate(pythons):
                sides.append(Side(python, case, ranks, plan, Path(name) / str(number)))
            for side in sides:
                side.wait()
            yield sides
        finally:
            for side in sides:
                side.end()


def measure(
    case: str, ranks: int, sizes: Sequence[str], pythons: Sequence[str], plan: Path, turn: int
) -> Iterator[dict[str, Any]]:
    """Yield a turn's pair of each size: what each commit took, or held."""
    with _start_sides(pythons, case, ranks, plan) as sides:
        for size in sizes:
            request = {"size_bytes": SIZES.get(size, 0)}
            found: list[list[float]] = [[] for _ in sides]
            for alternation in range(_ROUNDS if case in CALLS else 1):
                # The side that comes first may find the processor cooler, or the caches emptier.
                for number in (0, 1) if (turn + alternation) % 2 == 0 else (1, 0):
                    found[number].append(sides[number].ask(request))
            old, new = map(statistics.median, found)
            yield {"size": size, "old": old, "new": new}


# Ranks


def be_rank(case: str, plan: str) -> None:
    """Be a rank of one commit: answer requests with microseconds, seconds or MiB."""
    import torch

    torch.set_num_threads(1)
    import topoplan  # imports are no part of what `first` measures

    assert topoplan.__file__.startswith(sys.prefix), f"{topoplan.__file__} is another checkout"
    answer = {
        "messages": _answer_communicator,
        "shared": _answer_communicator,
        "backend": _answer_backend,
        "hook": _answer_hook,
        "first": _answer_first,
        "memory": _answer_memory,
    }[case](case, plan)
    print(0, flush=True)
    for line in sys.stdin:
        print(answer(json.loads(line)["size_bytes"]), flush=True)


def _join(backend: str, options: object = None) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    dist.init_process_group(
        backend,
        init_method=f"file://{os.environ['MEETING']}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=_TIMEOUT_S),
        pg_options=options,
    )


def _time_us(call: Callable[[], object]) -> float:
    """Return the median microseconds of a call, over as many on all ranks as rank 0 finds fit."""
    import time

    import torch
    import torch.distributed as dist

    def time_once() -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    warm = min(time_once() for _ in range(2))
    calls = torch.tensor([min(max(_LEAST_CALLS, int(_ROUND_S / warm)), _MOST_CALLS)])
    dist.broadcast(calls, 0)
    return statistics.median(time_once() for _ in range(int(calls))) * 1e6


def _answer_communicator(case: str, plan: str) -> Callable[[int], float]:
    import torch

    import topoplan

    _join("gloo")
    executor = "point-to-point" if case == "messages" else "one-sided"
    communicator = topoplan.Communicator(plan, choose="plan", executor=executor)
    tensors: dict[int, torch.Tensor] = {}

    def answer(size_bytes: int) -> float:
        tensor = tensors.setdefault(size_bytes, torch.zeros(size_bytes // _FLOAT_BYTES))
        return _time_us(lambda: communicator.allreduce(tensor))

    return answer


def _answer_backend(_: str, plan: str) -> Callable[[int], float]:
    import torch
    import torch.distributed as dist

    import topoplan

    _join("topo", topoplan.backend_options(plans=plan, choose="plan", least_bytes=0))
    tensors: dict[int, torch.Tensor] = {}

    def answer(size_bytes: int) -> float:
        tensor = tensors.setdefault(size_bytes, torch.zeros(size_bytes // _FLOAT_BYTES))
        return _time_us(lambda: dist.all_reduce(tensor))

    return answer


def _answer_hook(_: str, plan: str) -> Callable[[int], float]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import topoplan

    _join("gloo")
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    model.register_comm_hook(None, topoplan.ddp_hook(plan, choose="plan"))
    rows = torch.randn(4, _WIDTH)

    def step() -> None:
        model.zero_grad()
        model(rows).square().mean().backward()

    step()  # after it DDP makes its buckets anew
    return lambda _: _time_us(step)


def _answer_first(_: str, plan: str) -> Callable[[int], float]:
    import time

    import torch
    import torch.distributed as dist

    import topoplan

    def answer(_: int) -> float:
        began = time.perf_counter()
        _join("topo", topoplan.backend_options(plans=plan))
        for numel in (1 << 10, 1 << 14, 1 << 18):
            dist.all_reduce(torch.zeros(numel))
        return time.perf_counter() - began

    return answer


def _answer_memory(_: str, plan: str) -> Callable[[int], float]:
    import torch
    import torch.distributed as dist

    import topoplan

    def answer(_: int) -> float:
        _join("topo", topoplan.backend_options(plans=plan, choose="plan", least_bytes=0))
        for size_bytes in SIZES.values():
            tensor = torch.zeros(size_bytes // _FLOAT_BYTES)
            for _ in range(_LEAST_CALLS):
                dist.all_reduce(tensor)
        text = Path("/proc/self/status").read_text(encoding="ascii")
        return int(text.split("VmRSS:")[1].split()[0]) / 1024

    return answer


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("old", metavar="OLD", help="a commit, as git names it")
    add("new", metavar="NEW", help="the commit to compare with it")
    add("--turns", type=int, default=15, help="launches of each case (default: 15)")
    cases = (*CALLS, *ONCE)
    add("--cases", type=list_of(cases), default=cases, help=f"some of {', '.join(cases)}")
    add("--ranks", type=_list_ranks, default=[2, 4], help="numbers of ranks (default: 2,4)")
    add("--sizes", type=list_of(SIZES), default=list(SIZES), help=f"some of {', '.join(SIZES)}")
    add("--results", type=Path, help="JSON lines, continued by a second start")
    add("--rank", metavar="CASE", help=argparse.SUPPRESS)
    add("--plan", help=argparse.SUPPRESS)
    return parser.parse_args()


def _list_ranks(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
