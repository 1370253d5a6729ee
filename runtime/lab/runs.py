"""Starts the ranks of a report, one set for each network and number of ranks, and gathers the rows."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...synth.synthesize import collective_on, synthesize
from ...topo.errors import InfeasibleError, InputError, TimeLimitError, TopoplanError
from ..emulate import EmulationError, emulate, why_not
from ..emulate.ranks import run_ranks
from ..ranks.launch import ending_on_signals, inside_a_launch, launch
from .dataset import Dataset
from .job import EVENTS, FAULT, JOB, LOG, ROWS
from .networks import LOOPBACK, SLOW, Site
from .report.rows import Row, measured
from .settings import Settings
from .systems import SERIAL, System

_SYNTHESIS_S = 20.0
_POLL_S = 0.2
Say = Callable[[str, int, int], None]
Start = Callable[[Path, int], int]


@dataclass(frozen=True)
class Lab:
    """What is to be run. `say` is told where the run is: in words, epochs done, epochs in all."""

    dataset: Dataset
    settings: Settings
    systems: tuple[System, ...]
    sites: list[Site]
    say: Say

    def run(self) -> list[Row]:
        """All rows, in the table's order. A system that fails has a row with the reason, and the others go on.

        Call from the main thread. InputError inside a launch: ranks are started here.
        """
        if inside_a_launch():
            raise InputError("topo-lab starts its ranks itself; run it once, not under torchrun or topo-emulate")
        rows: list[Row] = []
        with tempfile.TemporaryDirectory(prefix="topoplan-") as name, ending_on_signals():
            folder = Path(name)
            self.dataset.save(folder)
            alone = tuple(system for system in self.systems if system.name == SERIAL)
            if alone:
                rows += self._launched(folder, None, alone, {}, _here)
            for site in self.sites:
                rows += self._at(site, folder)
        return _beside_serial(rows)

    def _at(self, site: Site, folder: Path) -> list[Row]:
        """One network and number of ranks."""
        systems = tuple(system for system in self.systems if system.name != SERIAL)
        reason = why_not() if site.slowest_bps is not None else None
        if reason is not None:
            return [Row(site.network, site.ranks, system.name, reason=reason) for system in systems]
        plans, rows = self._plans(site, systems, folder)
        declined = {row.system for row in rows}
        left = [system for system in systems if system.name not in declined]
        together = tuple(system for system in left if not system.helpers)
        for group in (together, *((system,) for system in left if system.helpers)):
            if not group:
                continue
            place = site.with_helpers(group[0].helpers)
            if place is None:
                why = f"it needs helpers, and there is no place for any in a given topology; use {LOOPBACK} or {SLOW}"
                rows += [Row(site.network, site.ranks, system.name, reason=why) for system in group]
                continue
            try:
                with _starting(place) as start:
                    rows += self._launched(folder, place, group, plans, start)
            except EmulationError as error:
                rows += [Row(site.network, site.ranks, system.name, reason=str(error)) for system in group]
        return sorted(rows, key=lambda row: [system.name for system in self.systems].index(row.system))

    def _plans(self, site: Site, systems: tuple[System, ...], folder: Path) -> tuple[dict[str, str], list[Row]]:
        """The file with the plan of each system that needs one, and rows of those that cannot have one."""
        plans: dict[str, str] = {}
        rows: list[Row] = []
        made: dict[str, str | TopoplanError] = {}
        for system in systems:
            strategy = system.strategy
            if strategy is None:
                continue
            if strategy not in made:
                self.say(f"{site.network}, {site.ranks} ranks: planning ({strategy})", 0, 0)
                made[strategy] = _planned(site, strategy, folder)
            plan = made[strategy]
            if isinstance(plan, TopoplanError):
                rows.append(Row(site.network, site.ranks, system.name, reason=str(plan)))
            else:
                plans[system.name] = plan
        return plans, rows

    def _launched(
        self, folder: Path, site: Site | None, systems: tuple[System, ...], plans: dict[str, str], start: Start
    ) -> list[Row]:
        """All systems in one launch, without a site in one process; where one fails, the others once more without it."""
        network, ranks, helpers = (SERIAL, 1, 0) if site is None else (site.network, site.ranks, site.helpers)
        rows: list[Row] = []
        left = [system.name for system in systems]
        while left:
            here = Path(tempfile.mkdtemp(dir=folder))
            if site is not None:
                (here / "topology.json").write_text(site.topology.dumps(), encoding="utf-8")
            job = {
                "dataset": self.dataset.name,
                "classes": self.dataset.classes,
                "data": str(folder),
                "settings": asdict(self.settings),
                "systems": left,
                "plans": plans,
                "helpers": helpers,
                "topology": None if site is None else str(here / "topology.json"),
            }
            (here / JOB).write_text(json.dumps(job), encoding="utf-8")
            with self._watched(
                here, SERIAL if site is None else f"{network}, {ranks} ranks", len(left) * self.settings.epochs
            ):
                code = start(here, ranks + helpers)
            if code == 0 and (here / ROWS).is_file():
                found = json.loads((here / ROWS).read_text(encoding="utf-8"))
                tested = len(self.dataset.test_y)
                return rows + [measured(network, ranks, row, tested) for row in found]
            system, why = _fault(here, ranks + helpers, left, code)
            rows.append(Row(network, ranks, system, reason=why, failed=True))
            left.remove(system)
        return rows

    @contextmanager
    def _watched(self, here: Path, what: str, epochs: int) -> Iterator[None]:
        """Say how far the ranks are, as rank 0 leaves word of it."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_POLL_S):
                seen = _events(here)
                if seen:
                    self.say(f"{what}: {seen[-1]}", len(seen) - 1, epochs)

        self.say(what, 0, epochs)
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _here(folder: Path, ranks: int) -> int:
    return launch(_command(folder), ranks)


def _command(folder: Path) -> list[str]:
    return [sys.executable, "-m", f"{__package__}.rank", str(folder)]


@contextmanager
def _starting(site: Site) -> Iterator[Start]:
    """How ranks are started at a site."""
    if site.slowest_bps is None:
        yield _here
        return
    with emulate(site.topology, site.slowest_bps) as network:
        yield lambda folder, ranks: run_ranks(network, _command(folder))


def _planned(site: Site, strategy: str, folder: Path) -> str | TopoplanError:
    """The file with the plan, or why there is none."""
    try:
        plan = synthesize(collective_on("allreduce", site.topology), site.topology, strategy, _SYNTHESIS_S).plan
    except (InfeasibleError, TimeLimitError) as error:
        return error
    path = Path(tempfile.mkdtemp(dir=folder)) / "plan.json"
    plan.save(path)
    return str(path)


def _events(here: Path) -> list[str]:
    path = here / EVENTS
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _fault(here: Path, ranks: int, systems: list[str], code: int) -> tuple[str, str]:
    """The system during which ranks failed, and why: what one of them says, or else the end of its log."""
    told: list[dict[str, Any]] = []
    logs: list[str] = []
    for rank in range(ranks):
        fault, log = here / FAULT.format(rank=rank), here / LOG.format(rank=rank)
        if fault.is_file():
            told.append(json.loads(fault.read_text(encoding="utf-8")))
        if log.is_file():
            logs += [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()][
                -1:
            ]
    told.sort(key=lambda fault: not fault["known"])
    if told:
        return told[0]["system"], told[0]["why"]
    seen = _events(here)
    said = f": {logs[0][:300]}" if logs else ""
    return seen[-1] if seen else systems[0], f"a rank ended with exit code {code}{said}"


def _beside_serial(rows: list[Row]) -> list[Row]:
    """With each row's difference to the serial one in points."""
    serial = next((row.accuracy_percent for row in rows if row.system == SERIAL), None)
    return [
        row if serial is None or row.accuracy_percent is None
        else replace(row, serial_points=row.accuracy_percent - serial)
        for row in rows
    ]  # fmt: skip
