"""topo-run as it is used: its ranks, its rows, its exit codes."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import patience
import pytest
from launch import Ended, lives, run_command, run_joined, run_module
from planned import synthesize
from stacks import list_descendants

from topoplan.runtime.ranks.launch import end_on_signals, run_together
from topoplan.synth.cost.host_costs import HostCosts, with_host
from topoplan.synth.ir.collective import collective_on
from topoplan.topo.presets import preset

ROW = {
    "size_bytes",
    "schedule",
    "plan_us",
    "stock_us",
    "ratio",
    "predicted_us",
    "algbw_GBps",
    "busbw_GBps",
    "bound_fraction",
    "wrong",
}


def check(done: Ended, code: int) -> Ended:
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def run(*args: str, code: int = 0, env: dict[str, str] | None = None) -> Ended:
    return check(run_module("topoplan.cli.run", *args, env=env), code)


def run_on(ranks: int, *args: str) -> Ended:
    """Join ranks that a launcher started, which costs less than to have them started; return what
    rank 0 printed.
    """
    first, *others = run_joined("topoplan.cli.run", *args, ranks=ranks)
    assert all((done.returncode, done.stdout, done.stderr) == (0, "", "") for done in others)
    return check(first, 0)


def make(path: Path, topology: str, collective: str = "allreduce", strategy: str = "auto") -> str:
    """Write a plan whose topology has host costs, so that topo-run need not measure them first."""
    target = with_host(preset(topology), HostCosts())
    synthesize(collective_on(collective, target), target, strategy, 20).plan.save(path)
    return str(path)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make(tmp_path_factory.mktemp("plans") / "plan.json", "ring:3", strategy="packing")


def rows_of(done: Ended) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    assert all(set(row) >= ROW for row in rows)
    return rows


def test_rows_have_the_contracts_fields_and_no_wrong_elements(plan: str) -> None:
    rows = rows_of(run(plan, "-b", "100", "-e", "5K", "-f", "50", "-n", "2", "-w", "1", "--json"))
    assert [row["size_bytes"] for row in rows] == [100, 5000]
    for row in rows:
        assert row["wrong"] == 0
        assert row["ratio"] == pytest.approx(row["stock_us"] / row["plan_us"])
        assert row["algbw_GBps"] == pytest.approx(row["size_bytes"] / row["plan_us"] / 1e3)
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * 4 / 3)


@pytest.mark.long
def test_more_than_the_bound_is_explained(tmp_path: Path) -> None:
    slow = make(tmp_path / "plan.json", "path:2@0.00001", strategy="direct")
    lines = run_on(2, slow, "-b", "64K", "-e", "64K", "-n", "1", "-w", "0").stdout.splitlines()
    assert "burst" in lines[-2] and lines[-2].startswith("# above 100 % at 64 KiB: ")


def test_the_table_is_nccl_tests_style(plan: str) -> None:
    lines = run_on(
        3, plan, "-b", "1K", "-e", "1K", "-n", "1", "-w", "0", "--dtype", "bfloat16", "--op", "avg"
    ).stdout.splitlines()
    assert lines[0] == "# allreduce on ring:3, 3 ranks, gloo, bfloat16, avg"
    assert next(line for line in lines if not line.startswith("#")).split()[:3] == [
        "1024",
        "512",
        "bfloat16",
    ]
    assert lines[-1] == "# wrong elements: 0"


def test_other_collectives_are_checked_too(tmp_path: Path) -> None:
    path = make(tmp_path / "plan.json", "path:2", "broadcast", "packing")
    assert all(
        row["wrong"] == 0
        for row in rows_of(
            run_on(
                2, path, "-b", "4K", "-e", "4K", "-n", "2", "-w", "0", "--choose", "plan", "--json"
            )
        )
    )


@pytest.mark.parametrize("op", ["sum", "avg", "prod", "max", "min"])
@pytest.mark.parametrize(
    "name",
    ["allreduce", "reduce-scatter", "allgather", "broadcast", "alltoall", "gather", "scatter"],
)
def test_wrong_elements_are_counted_one_by_one(name: str, op: str) -> None:
    """The count is no constant: what is right counts 0, each damaged element 1, and NaN is
    wrong.
    """
    torch = pytest.importorskip("torch")
    from topoplan.runtime.measuring.bench_data import BenchBuffers, BenchSettings
    from topoplan.runtime.measuring.bench_options import BenchOptions
    from topoplan.synth.ir.collective import Collective

    root = 0 if name in ("broadcast", "gather", "scatter") else None
    settings = BenchSettings(Collective(name, 4, root), BenchOptions(), torch.float32, op)
    buffers = BenchBuffers(settings, 0, 4096, torch.device("cpu"))
    wanted = buffers.compute_expected()
    assert wanted is not None
    buffers.output = wanted[0].float()
    assert buffers.count_errors()[0] == 0
    buffers.output[3] += 1
    buffers.output[100] = float("nan")
    buffers.output[101] *= -1.5
    assert buffers.count_errors()[0] == 3


@pytest.mark.long
def test_whole_numbers_that_overflow_wrap_on_both_sides(tmp_path: Path) -> None:
    path = make(tmp_path / "plan.json", "switch:5", strategy="direct")
    (row,) = rows_of(
        run_on(
            5,
            path,
            *("-b", "4K", "-e", "4K", "-n", "1", "-w", "0", "--choose", "plan"),
            *("--dtype", "int8", "--op", "prod", "--json"),
        )
    )
    assert row["wrong"] == 0


@pytest.mark.long
def test_a_terminated_run_leaves_no_rank_behind(plan: str) -> None:
    command = [
        sys.executable,
        "-m",
        "topoplan.cli.run",
        plan,
        "-b",
        "1M",
        "-e",
        "1M",
        "-n",
        "1000000",
    ]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ranks_that_met() -> list[int]:
        """Those that have gloo's threads."""
        return [
            pid
            for pid in list_descendants(parent.pid)
            if len(list(Path(f"/proc/{pid}/task").glob("*"))) > 1
        ]

    patience.wait_until(lambda: len(ranks_that_met()) >= 3, "three ranks that meet", [parent])
    started = list_descendants(parent.pid)
    parent.terminate()
    assert patience.wait_for_ends([parent]) == [143]
    patience.wait_until(lambda: not any(map(lives, started)), "the end of all processes")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_in_the_middle_of_a_fork_ends_the_ranks() -> None:
    """Python drops exceptions raised in what it calls around a fork, that of the signal's handler
    included.
    """
    to_come = [signal.SIGTERM]
    os.register_at_fork(
        after_in_parent=lambda: signal.raise_signal(to_come.pop()) if to_come else None
    )
    rank: list[subprocess.Popen[bytes]] = []

    def start(number: int) -> subprocess.Popen[bytes]:
        rank.append(subprocess.Popen(["sleep", "1000"], preexec_fn=os.getpid))
        return rank[0]

    with pytest.raises(SystemExit) as ended, end_on_signals():
        run_together(start, 1)
    assert ended.value.code == 128 + signal.SIGTERM
    assert rank[0].returncode is not None


def test_stock_alone() -> None:
    (row,) = rows_of(run_on(2, "--stock", "-b", "4K", "-e", "4K", "-n", "2", "--json"))
    assert row["plan_us"] is None
    assert row["schedule"] == "stock"
    assert row["stock_us"] > 0


def test_all_collectives_in_one_run_in_place_and_out_of_place_with_their_averages_and_rows_as_csv(
    tmp_path: Path,
) -> None:
    plans = [
        make(tmp_path / f"{name}.json", "path:2", name, "direct")
        for name in ("allreduce", "allgather", "reduce-scatter", "gather", "scatter", "alltoall")
    ]
    table = tmp_path / "rows.csv"
    asked = ("-b", "4K", "-e", "4K", "-n", "1", "-w", "0", "--place", "both", "--choose", "plan")
    more = ("--executor", "point-to-point", "--dtype", "half", "--json", "--csv", str(table))
    done = run_on(2, *plans, *asked, *more)
    assert done.stderr == f"rows written to {table}\n"
    runs = json.loads(done.stdout)["runs"]
    assert [(one["collective"], [row["place"] for row in one["rows"]]) for one in runs] == [
        *(
            (name, ["out", "in"])
            for name in ("allreduce", "allgather", "reduce-scatter", "gather", "scatter")
        ),
        ("alltoall", ["out"]),
    ]
    for one in runs:
        assert one["dtype"] == "float16" and all(row["wrong"] == 0 for row in one["rows"])
        busbw = [row["busbw_GBps"] for row in one["rows"]]
        assert one["average_busbw_GBps"]["plan"] == pytest.approx(sum(busbw) / len(busbw))
    with table.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["collective"], line["place"], float(line["plan_us"])) for line in lines] == [
        (one["collective"], row["place"], row["plan_us"]) for one in runs for row in one["rows"]
    ]
    assert lines[0]["predicted_us"] and (len(lines), lines[0]["topology"]) == (11, "path:2")


def test_stock_collectives_of_torchs_names_side_by_side() -> None:
    done = run_on(
        2, "--stock", "--collective", "all_reduce,all_gather", "-b", "4K", "-e", "4K", "-n", "2"
    )
    lines = done.stdout.splitlines()
    assert [line.split(",")[0] for line in lines if ", gloo, " in line] == [
        "# allreduce",
        "# allgather",
    ]
    assert sum(line.startswith("# average busbw: stock ") for line in lines) == 2


def test_bad_input_is_one_line_and_the_contracts_exit_code(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from topoplan.cli.run import main

    damaged, cut = tmp_path / "damaged.json", tmp_path / "cut.json"
    text = Path(plan).read_text()
    damaged.write_text(text.replace('"reduce"', '"copy"', 1))
    cut.write_text(text[: len(text) // 2])
    cases = [
        (["none.json"], 2, "cannot be read"),
        ([str(cut)], 2, "not JSON"),
        ([str(damaged)], 5, "does not match its hash"),
        ([plan, "--nproc", "2"], 2, "the plan is for 3 ranks"),
        ([plan, "--topology", "ring:4"], 5, "the plan is for topology"),
        ([plan, "-b", "2M", "-e", "1M"], 2, "expected a smallest size"),
        ([plan, "--op", "xor"], 2, "expected one of sum"),
        ([plan, "--dtype", "int32", "--op", "avg"], 2, "AVG of"),
        ([], 2, "no plan given"),
        (["--stock"], 2, "--nproc"),
        ([plan, "-o", str(tmp_path / "out.json")], 2, "-o without --calibrate"),
        ([plan, "--dtype", "floot16"], 2, "(did you mean 'float16'?)"),
        ([plan, plan, "--plot", "x.svg"], 2, "--plot with 2 plans"),
        (
            ["--stock", "--nproc", "2", "--collective", "alltoall", "--place", "in"],
            2,
            "alltoall has no call in place",
        ),
        (
            ["--stock", "--nproc", "2", "--collective", "all_reduce,all_gathr"],
            2,
            "(did you mean 'allgather'?)",
        ),
        ([plan, "--reduction", "once"], 2, "reduction='once' without compress"),
        ([plan, plan, "--on-fault", "replan"], 2, "expected a single plan for all GPUs"),
        ([plan, "--inject", "cut gpu0-gpu1 at 2s"], 2, "topo-emulate MACHINE --inject"),
    ]
    for args, code, says in cases:
        assert main(args) == code, args
        printed = capsys.readouterr()
        assert printed.out == ""
        assert says in printed.err
        assert len(printed.err.strip().splitlines()) == 1, printed.err


def test_joining_a_world_of_another_size_is_refused(plan: str) -> None:
    done = run(plan, code=5, env={"RANK": "0", "WORLD_SIZE": "2"})
    assert "the plan is for 3 ranks, 2 were started" in done.stderr
    assert run(plan, code=5, env={"RANK": "1", "WORLD_SIZE": "2"}).stderr == ""


def test_ranks_that_nobody_joins_are_told_in_one_line(plan: str) -> None:
    alone = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = run(plan, "--timeout", "2", code=1, env=alone)
    assert "rank 1: the ranks did not find each other" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_torchrun_joins(tmp_path: Path) -> None:
    pair = make(tmp_path / "plan.json", "path:2", strategy="direct")
    command = ["topoplan.cli.run", pair, "-b", "1K", "-e", "1K", "-n", "1", "-w", "0", "--json"]
    done = run_module("forked_torchrun", "--standalone", "--nproc-per-node", "2", "-m", *command)
    assert done.returncode == 0, done.stderr
    assert rows_of(done)[0]["wrong"] == 0


def test_help_needs_no_torch() -> None:
    code = (
        "import atexit, os, sys; from topoplan.cli.run import main\n"
        "atexit.register(lambda: os._exit('torch' in sys.modules)); main(['--help'])"
    )
    assert run_command(sys.executable, "-c", code).returncode == 0


@pytest.mark.long
def test_recorded_machines_run_with_no_wrong_elements(
    recorded: Callable[[str], Path], tmp_path: Path
) -> None:
    from topoplan.topo.loader.resolve import resolve

    topology = with_host(resolve(str(recorded("nccl_xml/rccl/topo_8p_rome.xml"))), HostCosts())
    path = tmp_path / "plan.json"
    synthesize(collective_on("allreduce", topology), topology, "packing", 10).plan.save(path)
    rows = rows_of(
        run_on(
            8,
            str(path),
            "-b",
            "4K",
            "-e",
            "1M",
            "-f",
            "256",
            "-n",
            "2",
            "-w",
            "0",
            "--choose",
            "plan",
            "--json",
        )
    )
    assert [row["wrong"] for row in rows] == [0, 0]


@pytest.mark.parametrize("case", ["rank 0 late", "rank 0 too late", "another fails first"])
def test_bad_input_wins_over_what_it_makes_other_ranks_report(case: str, tmp_path: Path) -> None:
    done = run_module("ranks.refusing_command", case, str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "bad input\n")


def test_options_are_checked_before_any_rank_is_started(
    plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from topoplan.cli.run import main
    from topoplan.runtime.ranks import launch as launching

    started: list[object] = []

    def note_start(*given: object) -> int:
        started.append(given)
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "launch", note_start)
        for wrong in (
            ["--compress", "zip"],
            ["--reduction", "once"],
            ["--dtype", "int4"],
            ["--op", "xor"],
            ["--dtype", "int32", "--op", "avg"],
            ["-n", "0"],
            ["--timeout", "0"],
        ):
            assert main([plan, *wrong]) == 2, wrong
            assert len(capsys.readouterr().err.splitlines()) == 1
        assert main(["--stock", "--nproc", "2", "--collective", "allsome"]) == 2
        assert started == []
        assert main([plan, "--op", "avg"]) == 0
    assert len(started) == 1
