"""The Python API: its names, what they take, what is printed of objects, one's own strategies."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from called import call_command
from conftest import SLOW
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launch import run_command, run_module, run_ranks
from random_graphs import graphs
from ranks import programs
from thorough import count_examples
from unhurried import make_effort

import topoplan
from topoplan.runtime.candidates import Candidate
from topoplan.synth.describe import describe_plan
from topoplan.synth.planner import registry
from topoplan.synth.planner.registry import find_strategy, list_strategies
from topoplan.synth.strategies.built_in import STRATEGIES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def own_strategies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """No strategies but ours, and those that a test adds: by the decorator, or to this list of
    entry points.
    """
    points: list[EntryPoint] = []
    monkeypatch.setattr(registry, "DECORATED", {})
    monkeypatch.setattr(
        registry, "entry_points", lambda group: points if group == "topoplan.strategies" else []
    )
    registry.list_installed.cache_clear()
    yield points
    registry.list_installed.cache_clear()


def send_around(request: topoplan.Request) -> list[topoplan.Schedule]:
    """A broadcast from rank to rank."""
    if request.collective.name != "broadcast":
        raise topoplan.InfeasibleError("it has only broadcast")
    ranks = range(request.collective.ranks - 1)
    sends: list[topoplan.Send] = [(rank, rank, rank + 1, 0, "copy") for rank in ranks]
    return [topoplan.build_schedule(request, "whatever", request.collective.even_chunks(1), sends)]


def test_public_names_are_shown() -> None:
    assert set(topoplan._list_homes()) <= set(dir(topoplan))
    assert not [
        name for name in dir(topoplan) if not name.startswith("__") and name not in topoplan.__all__
    ]
    assert not set(topoplan._OLD) & set(topoplan.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        topoplan.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_old_names_still_work_and_warn() -> None:
    ring = topoplan.load("ring:3")
    with pytest.warns(DeprecationWarning, match=r"goes with version 0.2; use topoplan\.load"):
        assert topoplan.resolve("ring:3") == ring  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="the method describe"):
        assert topoplan.describe(ring) == ring.describe()  # type: ignore[attr-defined]
    plan = topoplan.synthesize("allreduce", ring, "ring")
    with pytest.warns(DeprecationWarning):
        assert topoplan.describe(plan, "1M") == plan.describe("1M")  # type: ignore[attr-defined]
    for name in topoplan._OLD:
        with pytest.warns(DeprecationWarning, match=f"topoplan.{name} goes"):
            assert getattr(topoplan, name)


@pytest.mark.long
def test_planning_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, topoplan; p = topoplan.synthesize('allreduce', 'ring:3', 'ring'); "
        "p.save('plan.json')\n"
        "p.describe()\n"
        "topoplan.Plan.load('plan.json'); topoplan.load('ring:3').describe(); "
        "topoplan.strategy('x')(print)\n"
        "dir(topoplan); print('torch' in sys.modules, topoplan.TreeLimits(max_trees=3))"
    )
    done = run_command(
        sys.executable, "-c", code, cwd=tmp_path, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    )
    assert done.stdout == "False TreeLimits(epsilon=None, max_trees=3, max_depth=None)\n", (
        done.stderr
    )


def test_a_machine_is_loaded_by_name_by_path_and_from_the_local_machine(tmp_path: Path) -> None:
    ring = topoplan.load("ring:3")
    assert ring.fingerprint == topoplan.Topology.loads(ring.dumps()).fingerprint
    (tmp_path / "ring.json").write_text(ring.dumps(), encoding="utf-8")
    assert (
        topoplan.load(tmp_path / "ring.json") == topoplan.load(str(tmp_path / "ring.json")) == ring
    )
    assert topoplan.probe().fingerprint == topoplan.load("local").fingerprint


def test_what_is_no_machine_is_refused_in_one_line(tmp_path: Path) -> None:
    topoplan.synthesize("allreduce", "ring:3", "ring").save(tmp_path / "plan.json")
    with pytest.raises(
        topoplan.InputError, match=r"plan\.json: it is a plan, not a topology.*topoplan\.Plan\.load"
    ):
        topoplan.load(tmp_path / "plan.json")
    with pytest.raises(topoplan.InputError, match="a topology is 7; expected a path or a name"):
        topoplan.load(7)  # type: ignore[arg-type]
    with pytest.raises(
        topoplan.InputError, match=r"link 'a' -> 'b': bandwidth_GBps: .*'fast'; expected a number"
    ):
        topoplan.Link("a", "b", "fast")  # type: ignore[arg-type]


def test_a_machine_may_be_written_down_in_python() -> None:
    """Lists and usual numbers are taken; what is kept is exact, and can be hashed."""
    devices = [topoplan.Device("a"), topoplan.Device("b")]
    links = [topoplan.Link("a", "b", 12.5), topoplan.Link("b", "a", Fraction(25, 2), 1)]  # type: ignore[arg-type]
    machine = topoplan.Topology("two", devices, links)  # type: ignore[arg-type]
    assert machine.capacity_GBps == {("a", "b"): Fraction(25, 2), ("b", "a"): Fraction(25, 2)}
    assert isinstance(hash(machine), int)
    assert topoplan.synthesize("allreduce", machine, "ring").bound.algbw_GBps == Fraction(25, 2)


def test_a_plan_is_made_by_names_and_by_objects_alike() -> None:
    machine = topoplan.load("ring:3")
    named = topoplan.synthesize("broadcast", "ring:3", "packing", root=1)
    assert named == topoplan.synthesize(topoplan.Collective("broadcast", 3, 1), machine, "packing")
    assert named.collective == topoplan.Collective("broadcast", 3, 1)
    with pytest.raises(topoplan.InputError, match="over 4 ranks, topology 'ring:3' has 3 GPUs"):
        topoplan.synthesize(topoplan.Collective("allreduce", 4), machine)
    with pytest.raises(topoplan.InputError, match="root=2, but the collective has root 1"):
        topoplan.synthesize(topoplan.Collective("broadcast", 3, 1), machine, root=2)


def test_a_plan_for_one_size_has_what_is_fastest_there() -> None:
    every = topoplan.synthesize("allreduce", "ring:4", "packing")
    for size, size_bytes in (("64K", 1 << 16), (1 << 30, 1 << 30)):
        (entry,) = topoplan.synthesize("allreduce", "ring:4", "packing", size=size).entries
        assert (entry.min_bytes, entry.max_bytes) == (0, None)
        assert entry.schedule == every.entry_for(size_bytes).schedule


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "large"}, "'large' is not a size"),
        ({"size": -1}, "size is -1; expected bytes"),
        ({"time_limit_s": 0}, "time_limit_s is 0; expected seconds above 0"),
        (
            {"strategy": "nonsense"},
            "unknown strategy 'nonsense'; expected auto or one of packing, ",
        ),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(topoplan.InputError, match=message):
        topoplan.synthesize("allreduce", "ring:3", **options)  # type: ignore[arg-type]


def test_limits_are_checked_and_exact() -> None:
    assert topoplan.TreeLimits(epsilon=0.05).epsilon == Fraction(1, 20)  # type: ignore[arg-type]
    for wrong, message in (
        ({"epsilon": 2}, "epsilon is 2"),
        ({"max_trees": 0}, "max_trees is 0"),
        ({"max_depth": 1.5}, "1.5"),
    ):
        with pytest.raises(topoplan.InputError, match=message):
            topoplan.TreeLimits(**wrong)


def test_a_search_that_was_cut_short_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "topoplan"):
        topoplan.synthesize("allreduce", "dgx1", time_limit_s=0.01)
    assert "the time limit of 0.01 s cut the search short" in caplog.text


def test_a_schedule_is_verified_by_itself() -> None:
    schedule = topoplan.synthesize("allreduce", "ring:4", "ring").entries[0].schedule
    topoplan.verify(replace(schedule, segments=8), "ring:4")
    with pytest.raises(topoplan.VerificationError, match="ends without the contribution of rank"):
        topoplan.verify(replace(schedule, transfers=schedule.transfers[:-1]), "ring:4")
    with pytest.raises(topoplan.VerificationError, match="no link"):
        topoplan.verify(schedule, "path:4")


@settings(max_examples=count_examples(8))
@given(graphs(switches=2))
def test_a_machine_prints_as_one_line_and_describes_itself(machine: topoplan.Topology) -> None:
    assert len(repr(machine)) < 120 and "\n" not in repr(machine)
    assert machine.fingerprint in machine.describe()


def test_objects_print_as_one_line_and_describe_themselves_as_the_commands_do() -> None:
    plan = topoplan.synthesize("allreduce", "ring:4", "packing")
    assert repr(plan) == "<Plan allreduce on ring:4: 4 ranks, packing, at most 1.333 GB/s>"
    assert repr(topoplan.load("dgx1")) == "<Topology dgx1: 8 GPUs, 32 links>"
    for shown in (*plan.schedules, *plan.entries, plan.bound, plan.bound_one_way):
        assert len(repr(shown)) < 150 and "\n" not in repr(shown)
    printed = call_command(
        "synth",
        "--collective",
        "allreduce",
        "--topology",
        "ring:4",
        "--strategy",
        "packing",
        "--size",
        "1M",
    ).stdout
    assert plan.describe("1M") == plan.describe(1 << 20)
    lines = [line.split() for line in printed.splitlines()]
    described = [line.split() for line in plan.describe("1M").splitlines()]
    # Extras' remarks come last in both; topo-synth says more of its search before them.
    table = [line.split() for line in describe_plan(plan, 1 << 20).splitlines()]
    assert table == lines[: len(table)] == described[: len(table)]
    remarks = described[len(table) :]
    assert remarks == lines[len(lines) - len(remarks) :]
    assert max(map(len, plan.describe().splitlines()[1:])) < 200 and "…" not in plan.describe()


def test_a_name_that_looks_like_markup_is_printed_as_it_is() -> None:
    machine = replace(topoplan.load("ring:3"), name="[/a] [bold]b")
    assert (
        "allreduce on [/a] [bold]b (3 ranks"
        in topoplan.synthesize("allreduce", machine, "ring").describe()
    )


def test_objects_describe_themselves_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = topoplan.synthesize("allreduce", "dgx1", "packing")
    texts = [plan.topology.describe(), plan.describe(), plan.schedules[0].describe()]
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert [plan.topology.describe(), plan.describe(), plan.schedules[0].describe()] == texts
    assert min(map(len, texts)) > 500


def test_a_schedule_describes_its_first_transfers() -> None:
    (entry,) = topoplan.synthesize("broadcast", "switch:3", "packing", size="16M").entries
    head, titles, *rows = entry.schedule.describe().splitlines()
    assert (
        head.startswith("packing x")
        and "broadcast over 3 ranks, root 0" in head
        and "as a pipeline" in head
    )
    assert titles.split() == ["step", "from", "to", "chunk", "share", "operation", "through"]
    assert len(rows) == len(entry.schedule.transfers) and rows[0].split()[-1] == "switch0"
    many = topoplan.synthesize("alltoall", "full:16", "direct").entries[0].schedule
    assert many.describe().splitlines()[-1] == "... and 176 more transfers"


def test_a_choice_describes_the_race() -> None:
    own = Candidate(topoplan.synthesize("allreduce", "ring:3", "ring").entries[0].schedule)
    raced = topoplan.Choice(own, own, lambda _: None, {"stock": 20.0, own.label: 10.0})
    assert repr(raced) == f"<Choice {own.label}, 2 raced>"
    assert [line.split()[0] for line in raced.describe().splitlines()] == [
        "used:",
        "schedule",
        "ring",
        "stock",
    ]
    assert raced.describe().splitlines()[2].endswith("10.0  used")
    assert (
        topoplan.Choice(None, own, lambda _: None, {}).describe()
        == "used: stock, chosen without a race"
    )


@pytest.mark.usefixtures("own_strategies")
def test_a_strategy_by_decorator_is_verified_and_costed_like_ours() -> None:
    assert topoplan.strategy("around")(send_around) is send_around
    plan = topoplan.synthesize("broadcast", "path:4", "around")
    (entry,) = plan.entries
    assert entry.schedule.strategy == "around"
    assert plan.cost_of(entry).alpha_us == 3 * Fraction(7, 10)
    assert list(list_strategies()) == [*STRATEGIES, "around"]
    topoplan.synthesize("broadcast", "path:4").verify()  # auto asks it too


def test_a_strategy_by_entry_point_is_imported_when_it_is_asked(
    own_strategies: list[EntryPoint],
) -> None:
    own_strategies += [
        EntryPoint("around", f"{__name__}:send_around", "topoplan.strategies"),
        EntryPoint("gone", "no.such.module:build", "topoplan.strategies"),
    ]
    sys.modules.setdefault(__name__, sys.modules[send_around.__module__])
    assert (
        topoplan.synthesize("broadcast", "path:4", "around").entries[0].schedule.strategy
        == "around"
    )
    with pytest.raises(
        topoplan.StrategyError,
        match=r"strategy 'gone' failed: ModuleNotFoundError: No module named 'no'",
    ):
        topoplan.synthesize("broadcast", "path:4", "gone")
    with pytest.raises(
        topoplan.InputError, match=r"expected auto or one of .*parameter-server, around, gone"
    ):
        find_strategy("nonsense")


def test_a_strategy_of_an_installed_package_is_known_to_the_command(tmp_path: Path) -> None:
    (tmp_path / "mine-1.0.dist-info").mkdir()
    (tmp_path / "mine-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n", encoding="utf-8"
    )
    points = "[topoplan.strategies]\nmine = mine:build\n"
    (tmp_path / "mine-1.0.dist-info/entry_points.txt").write_text(points, encoding="utf-8")
    (tmp_path / "mine.py").write_text(
        "def build(request):\n    return request.no_such_thing\n", encoding="utf-8"
    )
    # A process whose imports are done: its path has the package from here on.
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\nfrom topoplan.cli.synth import main\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "sys.exit(main(['allreduce', 'ring:3', '--strategy', 'mine']))\n",
        encoding="utf-8",
    )
    done = run_module("program_process", str(program))
    assert (done.returncode, done.stdout) == (1, "")
    line = (
        "strategy 'mine' failed: AttributeError: 'Request' object has no attribute "
        "'no_such_thing' (mine.py, line 2)"
    )
    assert done.stderr == f"topo-synth: error: {line}\n"


def test_entry_points_with_names_that_cannot_be_are_left_out(
    own_strategies: list[EntryPoint], caplog: pytest.LogCaptureFixture
) -> None:
    names = (("ring", "a:b"), ("Not a name", "a:b"), ("mine", "a:b"), ("mine", "c:d"))
    own_strategies += [EntryPoint(name, value, "topoplan.strategies") for name, value in names]
    assert list(list_strategies()) == [*STRATEGIES, "mine"]
    assert caplog.text.count("it is left out") == 3


def _send(request: topoplan.Request, send: topoplan.Send) -> list[topoplan.Schedule]:
    return [topoplan.build_schedule(request, "x", request.collective.even_chunks(1), [send])]


@pytest.mark.usefixtures("own_strategies")
@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (
            lambda request: 1 // 0,
            topoplan.StrategyError,
            r"ZeroDivisionError: .* \(test_api\.py, line \d+\)",
        ),
        (
            lambda request: None,
            topoplan.StrategyError,
            "returned None; expected a list of topoplan.Schedule",
        ),
        (
            lambda request: _send(request, (0, 0, 9, 0, "copy")),
            topoplan.InputError,
            "rank 9; expected ranks from 0 to",
        ),
        (
            lambda request: _send(request, (0, 0, -1, 0, "copy")),
            topoplan.InputError,
            "rank -1; expected ranks from 0",
        ),
        (
            lambda request: _send(request, (0, 0, 1, 0, "add")),  # type: ignore[arg-type]
            topoplan.InputError,
            "'add'; expected one of copy",
        ),
        (lambda request: [], topoplan.InfeasibleError, "returned no schedule"),
        (
            lambda request: ["ring"],
            topoplan.StrategyError,
            "returned 'ring'; expected a list of topoplan.Schedule",
        ),
        (lambda request: send_around(request), topoplan.InfeasibleError, "it has only broadcast"),
        (
            lambda request: send_around(request.of(topoplan.Collective("broadcast", 3, 0))),
            topoplan.StrategyError,
            "schedule 1 is for .*broadcast.*; expected .*allreduce",
        ),
        (
            lambda request: [
                topoplan.build_schedule(request, "x", request.collective.even_chunks(1), [])
            ],
            topoplan.VerificationError,
            "schedule 1 is wrong: rank 0 ends without the contribution of rank 1",
        ),
        (
            lambda request: [replace(STRATEGIES["packing"](request)[0], segments=4096)],
            topoplan.StrategyError,
            "schedule 1 has 4096 segments; expected from 1 to 2048",
        ),
    ],
)
def test_what_is_wrong_with_a_strategy_is_one_line_with_its_name(
    returned: registry.UserFunction, error: type[Exception], message: str
) -> None:
    topoplan.strategy("mine")(returned)
    with pytest.raises(error, match=rf"^strategy 'mine'.*{message}") as raised:
        topoplan.synthesize("allreduce", "path:3", "mine")
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("own_strategies")
@pytest.mark.parametrize(
    ("returned", "is_said"),
    [
        (lambda request: 1 // 0, True),
        (lambda request: _send(request, (0, 0, 9, 0, "copy")), True),
        (lambda request: _send(request, (0, 0, 1, 0, "copy")), True),  # verified, and wrong
        (lambda request: [], False),  # it has none for this machine
    ],
)
def test_what_is_wrong_with_a_strategy_is_no_reason_for_auto_not_to_plan(
    returned: registry.UserFunction, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    topoplan.strategy("mine")(returned)
    topoplan.synthesize("allreduce", "path:2").verify()
    assert ("strategy 'mine'" in caplog.text) == is_said


@pytest.mark.usefixtures("own_strategies")
@pytest.mark.parametrize(
    "name", ["ring", "auto", "", "Mine", "two words", "x" * 41, 7, send_around]
)
def test_names_that_a_strategy_may_not_have(name: str) -> None:
    with pytest.raises(topoplan.InputError, match="strategy"):
        topoplan.strategy(name)


@pytest.mark.usefixtures("own_strategies")
@settings(
    max_examples=count_examples(5),
    suppress_health_check=[*SLOW, HealthCheck.function_scoped_fixture],
)
@given(machine=graphs(switches=2), cut=st.integers(0, 40))
def test_a_strategy_that_drops_transfers_is_never_believed(
    machine: topoplan.Topology, cut: int
) -> None:
    """Whatever it leaves out of a right schedule, it is refused; what is left whole is planned
    with.
    """

    @topoplan.strategy("forgetful")
    def build(request: topoplan.Request) -> list[topoplan.Schedule]:
        schedule = STRATEGIES["packing"](request)[0]
        kept = [t for place, t in enumerate(schedule.transfers) if place != cut]
        return [replace(schedule, transfers=type(schedule.transfers).of(kept))]

    whole = STRATEGIES["packing"]
    wanted = topoplan.Collective("allgather", len(machine.ranks))
    request = topoplan.Request(wanted, machine, make_effort())
    if cut < len(whole(request)[0].transfers):
        with pytest.raises(
            topoplan.VerificationError, match="strategy 'forgetful': schedule 1 is wrong"
        ):
            find_strategy("forgetful")(request)
    else:
        assert find_strategy("forgetful")(request)[0].strategy == "forgetful"


@pytest.mark.long
def test_the_program_that_plans_a_machine(tmp_path: Path) -> None:
    done = run_module("program_process", str(EXAMPLES / "plan_a_machine.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        "gpu0 -> gpu1: 12 NVLinks, 300 GB/s" in done.stdout
        and "at most 24 GB/s algbw if the link between CPUs has 24 GB/s" in done.stdout
    )
    assert topoplan.Plan.load(tmp_path / "plan.json").collective.ranks == 4
    done = run_module(
        "program_process", str(EXAMPLES / "plan_a_machine.py"), "absent.txt", cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith(
        "absent.txt: no such file"
    )


@pytest.mark.long
def test_the_program_that_runs_a_collective() -> None:
    printed = run_ranks(programs.run_program, 2, str(EXAMPLES / "run_a_collective.py"))
    assert "sum over 2 ranks, as dist.all_reduce has it" in printed[0] and "stock" in printed[0]
    assert printed[1] == ""


@pytest.mark.long
def test_the_program_with_a_strategy_of_its_own() -> None:
    done = run_module("program_process", str(EXAMPLES / "own_strategy.py"))
    assert done.returncode == 0, done.stderr
    assert (
        "at 16 MiB: middle, predicted" in done.stdout
        and "middle x256: allreduce over 8 ranks" in done.stdout
    )
