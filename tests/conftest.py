"""Fixtures that several test files share, and how patient tests are on a busy machine."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import patience
import pytest
from hypothesis import HealthCheck, settings
from needs import list_unexpected_skips, why_unmet
from planned import synthesize
from thorough import VARIABLE, count_examples

from topoplan.extras import BY_NAME
from topoplan.synth.cost.host_costs import HostCosts, with_host
from topoplan.synth.ir.collective import collective_on
from topoplan.topo.presets import preset

MACHINES = Path(__file__).resolve().parents[2] / "shared" / "machines"
INPUTS = MACHINES.parent / "inputs"
# Extras that read what is in a folder of recordings.
READERS = {"hwloc": "hwloc", "amd-smi": "amd"}
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

# The same examples every time: what fails by chance would fail a change that has nothing to do with
# it. Whoever asks for more examples gets others (`thorough.VARIABLE`).
settings.register_profile(
    "topoplan",
    deadline=None,
    suppress_health_check=SLOW,
    max_examples=count_examples(60),
    derandomize=VARIABLE not in os.environ,
)
settings.load_profile("topoplan")
# The lab emulates networks.
collect_ignore = [] if BY_NAME["emulate"].is_here else ["examples/test_lab.py"]
gc.disable()  # until all is imported
# xdist's workers have one; tables are to be the same with and without them.
os.environ.pop("COLUMNS", None)
# With it `print` writes a line and its end apart, and ranks that share an output write between.
os.environ.pop("PYTHONUNBUFFERED", None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Give pytest-timeout as much more time as the machine is busy when the test begins."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(patience.seconds(float(item.config.getini("timeout")))))
    return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test of the network tier that needs what is not here."""
    for marker in item.iter_markers("network"):
        for need in marker.args:
            if reason := why_unmet(need):
                pytest.skip(f"{need}: {reason}")


def pytest_collection_finish() -> None:
    """Look for garbage seldom, and not among what was imported: it took a seventh of the tests'
    time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start processes come first: the workers that take file by file end with short
    ones.
    """

    def starts_processes(module: ModuleType) -> bool:
        return any(
            getattr(value, "__module__", None) == "launch" for value in vars(module).values()
        )

    modules = {item.module for item in items if isinstance(item, pytest.Function)}
    heavy = set(filter(starts_processes, modules))
    items.sort(key=lambda item: not (isinstance(item, pytest.Function) and item.module in heavy))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail on CI where a test is skipped that CI should run: see scripts/system-packages.sh."""
    if os.environ.get("CI") and not hasattr(session.config, "workerinput") and _list_skips(session):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which tests CI should not have skipped."""
    if os.environ.get("CI"):
        for reason in _list_skips(terminalreporter._session):
            terminalreporter.write_line(f"skipped on CI, which should run it: {reason}", red=True)


def _list_skips(session: pytest.Session) -> list[str]:
    """Return the reasons of this run's skips that CI may not have."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", [])
    reasons = [str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple)]
    return list_unexpected_skips(reasons, has_recordings=MACHINES.is_dir())


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is read from, or left in, the cache of whoever runs the tests, and the clock stops
    no search for a plan on a busy machine.
    """
    os.environ["TOPOPLAN_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ.setdefault("TOPOPLAN_TIME_LIMIT", str(patience.PLANNING_S))


@pytest.fixture
def recorded() -> Callable[[str], Path]:
    """The path of a recorded machine (`nccl_xml/oci/H100-topology.xml`); where it is absent the
    test skips.
    """

    def find(name: str) -> Path:
        path = MACHINES / name
        if not path.is_file():
            pytest.skip(f"recorded machine {name} is not here ({MACHINES})")
        _need_reader(name)
        return path

    return find


@pytest.fixture
def more_inputs() -> Callable[[str], Path]:
    """The path of a file of shared/inputs (`nccl_graphs/dgx1.graph.xml`); where it is absent the
    test skips.
    """

    def find(name: str) -> Path:
        path = INPUTS / name
        if not path.is_file():
            pytest.skip(f"input {name} is not here ({INPUTS})")
        _need_reader(name)
        return path

    return find


def _need_reader(name: str) -> None:
    """Skip where the extra that reads a recording is not in this copy."""
    extra = READERS.get(name.partition("/")[0])
    if extra is not None and not BY_NAME[extra].is_here:
        pytest.skip(f"no extra {extra}")


@pytest.fixture(scope="session")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The path of a plan: `plans("ring:4")`, `plans("switch:4", "allreduce", "direct", root=1)`;
    synthesized once. It has costs of the host, so that topo-run need not measure them.
    """
    # Workers share their session's folder: a plan that two of them make is the same, and written
    # whole.
    workers = os.environ.get("PYTEST_XDIST_WORKER")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if workers else base) / "plans"
    folder.mkdir(exist_ok=True)

    def find_or_synthesize(
        topology: str,
        collective: str = "allreduce",
        strategy: str = "auto",
        root: int | None = None,
    ) -> str:
        path = folder / f"{topology}-{collective}-{strategy}-{root}.json".replace(":", "_")
        if not path.exists():
            machine = with_host(preset(topology), HostCosts())
            wanted = collective_on(collective, machine)
            wanted = wanted if root is None else replace(wanted, root=root)
            synthesize(wanted, machine, strategy, patience.PLANNING_S).plan.save(
                path, overwrite=True
            )
        return str(path)

    return find_or_synthesize


@pytest.fixture(scope="session")
def folder_of_plans(
    plans: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """A new folder with copies of plans: `folder_of_plans(("ring:4", "allgather"), ("ring:4",
    "broadcast", "auto", 1))`.
    """

    def collect(*wanted: tuple[str | int, ...]) -> Path:
        folder = tmp_path_factory.mktemp("folder")
        for names in wanted:
            path = Path(plans(*names))
            shutil.copy(path, folder / path.name)
        return folder

    return collect


@pytest.fixture
def one_gpu() -> None:
    """Skips where there is no CUDA GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
