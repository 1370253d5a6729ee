"""Start a report's ranks, once per network and number of ranks, and collect their results."""

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import topoplan
from topoplan import Device, InfeasibleError, InputError, TimeLimitError, Topology
from topoplan.runtime.extras.emulate import EmulationError, emulate, why_not
from topoplan.runtime.extras.emulate.ranks import run_ranks
from topoplan.runtime.ranks.launch import end_on_signals, is_rank, launch

from .networks import LOOPBACK, SLOW, Site
from .results import RunResult, summarize
from .run_folder import RunFolder, TrainingJob
from .settings import Settings
from .systems import SERIAL, LabSystem
from .training.dataset import Dataset

_SYNTHESIS_S = 20.0  # time limit per plan: chosen, not measured
_POLL_S = 0.2  # polling interval of the ranks' progress files
# The site of the serial system: a single process.
_ALONE = Site(SERIAL, Topology(SERIAL, (Device("gpu0"),), ()), slowest_bps=None)
# The module that a rank runs.
_RANK = f"{__package__}.training.rank"
# Starts ranks, given the folder of a run and the number of ranks, and returns their exit code.
Start = Callable[[Path, int], int]


@dataclass(frozen=True)
class Lab:
    """The training runs of one report.

    `say` shows progress, given a description of what is running, the number of finished epochs, and
    the total number of epochs.
    """

    dataset: Dataset
    settings: Settings
    systems: tuple[LabSystem, ...]
    sites: list[Site]
    say: Callable[[str, int, int], None]

    def run(self) -> list[RunResult]:
        """Run every system at every site; return the results in the table's order.

        A system that fails yields a result with the reason, and the other systems still run. Call
        this from the main thread, because it handles signals. Raise InputError inside a launch of
        ranks, because it starts ranks itself.
        """
        if is_rank():
            raise InputError(
                "the lab starts its ranks itself; run it once, not under torchrun or topo-emulate"
            )
        results: list[RunResult] = []
        with tempfile.TemporaryDirectory(prefix="topoplan-") as name, end_on_signals():
            folder = Path(name)
            self.dataset.save(folder)
            for site in (_ALONE, *self.sites):
                results += self._run_at(site, folder)
        return _compare_with_serial(results)

    def _run_at(self, site: Site, folder: Path) -> list[RunResult]:
        """Run all systems at one site; the serial one has its own."""
        systems = tuple(x for x in self.systems if (x.name == SERIAL) == (site is _ALONE))
        reason = why_not() if site.slowest_bps is not None else None
        if reason is not None:
            return [_explain_missing(site, system, reason) for system in systems]
        plans, results = self._plan_all(site, systems, folder)
        runnable = [x for x in systems if x.name not in {result.system for result in results}]
        # Systems without helpers share one launch, so that they run under the same conditions; each
        # of the others has its own ranks.
        for group in filter(
            None,
            (tuple(x for x in runnable if not x.helpers), *((x,) for x in runnable if x.helpers)),
        ):
            helped_site = site.with_helpers(group[0].helpers)
            try:
                if helped_site is None:
                    raise EmulationError(
                        "it needs helpers, and a given topology has no devices for them; use "
                        f"{LOOPBACK} or {SLOW}"
                    )
                with _prepare_start(helped_site) as start:
                    results += self.run_together(folder, helped_site, group, plans, start)
            except EmulationError as error:
                results += [_explain_missing(site, system, str(error)) for system in group]
        # Runs were grouped by launch; the table has the order of the list of systems.
        names = [system.name for system in self.systems]
        return sorted(results, key=lambda result: names.index(result.system))

    def _plan_all(
        self, site: Site, systems: tuple[LabSystem, ...], folder: Path
    ) -> tuple[dict[str, str], list[RunResult]]:
        """Return the plan file of each system that needs one, and the results of failed syntheses.

        Systems with the same strategy share a plan.
        """
        plans: dict[str, str] = {}
        failures: list[RunResult] = []
        for strategy in dict.fromkeys(x.strategy for x in systems if x.strategy is not None):
            self.say(f"{site.network}, {site.ranks} ranks: planning ({strategy})", 0, 0)
            planned = [system for system in systems if system.strategy == strategy]
            path = Path(tempfile.mkdtemp(dir=folder)) / "plan.json"
            try:
                plan = topoplan.synthesize(
                    "allreduce", site.topology, strategy, time_limit_s=_SYNTHESIS_S
                )
                plan.save(path)
            except (InfeasibleError, TimeLimitError) as error:
                failures += [_explain_missing(site, system, str(error)) for system in planned]
            else:
                plans |= {system.name: str(path) for system in planned}
        return plans, failures

    def run_together(
        self,
        folder: Path,
        site: Site,
        systems: tuple[LabSystem, ...],
        plans: dict[str, str],
        start: Start,
    ) -> list[RunResult]:
        """Run systems in one launch of ranks at a site, and return a result for each.

        If a system fails, launch the remaining ones again. `plans` maps the names of systems to
        plan files; `start` starts the ranks, given a run's folder and their number, and returns
        their exit code.
        """
        title = SERIAL if site is _ALONE else f"{site.network}, {site.ranks} ranks"
        failures: list[RunResult] = []
        remaining = [system.name for system in systems]
        while remaining:
            # A folder for each try, so that files of a failed one are not read.
            run = RunFolder(Path(tempfile.mkdtemp(dir=folder)))
            topology = run.path / "topology.json"
            topology.write_text(site.topology.dumps(), encoding="utf-8")
            run.write(
                "job",
                TrainingJob(
                    dataset=self.dataset.name,
                    classes=self.dataset.classes,
                    data=str(folder),
                    settings=asdict(self.settings),
                    systems=remaining,
                    plans=plans,
                    helpers=site.helpers,
                    topology=str(topology),
                ),
            )
            with self._show_progress(run, title, len(remaining) * self.settings.epochs):
                code = start(run.path, len(site.topology.ranks))
            measured = run.read("results")
            if code == 0 and measured is not None:
                return failures + [
                    summarize(site.network, site.ranks, x, len(self.dataset.test_y))
                    for x in measured
                ]
            system, why = _find_fault(run, len(site.topology.ranks), remaining, code)
            failures.append(RunResult(site.network, site.ranks, system, reason=why, failed=True))
            # A failed rank ends the launch, so the other systems start over without its system.
            remaining.remove(system)
        return failures

    @contextmanager
    def _show_progress(self, run: RunFolder, title: str, epochs: int) -> Iterator[None]:
        """Show the ranks' progress, as recorded in rank 0's file, while the context lasts."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_POLL_S):
                begun = run.read_epochs()
                if begun:
                    self.say(f"{title}: {begun[-1]}", len(begun) - 1, epochs)

        self.say(title, 0, epochs)
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _explain_missing(site: Site, system: LabSystem, reason: str) -> RunResult:
    return RunResult(site.network, site.ranks, system.name, reason=reason)


@contextmanager
def _prepare_start(site: Site) -> Iterator[Start]:
    """Yield a function that starts ranks at a site, which is emulated while the context lasts."""
    if site.slowest_bps is None:
        # Preload torch._dynamo: constructing a DistributedDataParallel imports it, which takes as
        # long as importing torch itself.
        yield lambda folder, ranks: launch(_RANK, [str(folder)], ranks, ["torch._dynamo"])
        return
    with emulate(site.topology, site.slowest_bps) as network:
        yield lambda folder, ranks: run_ranks(network, [sys.executable, "-m", _RANK, str(folder)])


def _find_fault(run: RunFolder, ranks: int, systems: list[str], code: int) -> tuple[str, str]:
    """Return the system during which ranks failed, and the reason.

    The reason is a fault that a rank recorded, or else the exit code and a log's last line.
    """
    if faults := run.read_faults(ranks):
        return faults[0]["system"], faults[0]["why"]
    begun = run.read_epochs()
    printed = run.read_last_line(ranks)
    return begun[-1] if begun else systems[0], f"a rank ended with exit code {code}" + (
        f": {printed[:300]}" if printed else ""
    )


def _compare_with_serial(results: list[RunResult]) -> list[RunResult]:
    """Set each result's difference in accuracy from serial training, in percentage points."""
    serial = next((result.accuracy_percent for result in results if result.system == SERIAL), None)
    return [
        result
        if serial is None or result.accuracy_percent is None
        else replace(result, serial_points=result.accuracy_percent - serial)
        for result in results
    ]
