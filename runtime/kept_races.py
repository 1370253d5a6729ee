"""What races found, kept in a folder, so that the next start need not race again."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from datetime import date
from pathlib import Path
from typing import Annotated

import torch
from msgspec import Meta, Struct, structs
from platformdirs import user_cache_path

from ..synth.cost.host_costs import FIELD as HOST
from ..topo.errors import TopoplanError
from ..topo.files import write_whole
from ..topo.graph import Topology
from ..topo.schema import Index, Label, read_as
from ..topo.version import VERSION
from .ranks.machine import Machine

log = logging.getLogger("topoplan")


def find_cache_folder(named: str | Path | None = None) -> Path:
    """Return the folder for plans and races: `named`, else TOPOPLAN_CACHE, else topoplan in the user's cache folder."""
    folder = named or os.environ.get("TOPOPLAN_CACHE") or user_cache_path("topoplan", appauthor=False)
    return Path(folder).expanduser()


class KeptRace(Struct, frozen=True):
    """What won a race for a size: places in the plan's list of candidates, and all times.

    `winner` is None for the stock collective; `own` is the best of the plan's schedules. `labels` are the names of both,
    `raced_us` the medians in us by name, and `time_us` is the winner's.
    """

    winner: Index | None
    own: Index
    labels: tuple[Label, Label]
    time_us: Annotated[float, Meta(gt=0)]
    raced_us: dict[str, Annotated[float, Meta(gt=0)]]
    raced_on: Label


class KeptRaces:
    """The races of one plan on one machine. Everything that a time depends on is in the files' names."""

    def __init__(self, folder: Path, plan_hash: str, machine: Machine, device: torch.device, codec: str | None) -> None:
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        known = [
            plan_hash,
            _describe(machine.topology),
            machine.what,
            machine.batched,
            machine.host.to_json(),
            gpu,
            codec,
        ]
        text = json.dumps([*known, torch.__version__, VERSION], sort_keys=True, default=str)
        self._prefix = folder / "races" / hashlib.sha256(text.encode()).hexdigest()[:32]

    def find(self, size_bytes: int) -> KeptRace | None:
        """Return what won at a size (a power of two); None where no race was kept, or its file is damaged."""
        path = self._path(size_bytes)
        try:
            return read_as(json.loads(path.read_text(encoding="utf-8")), KeptRace, str(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TopoplanError) as error:
            log.warning("%s: not what a race leaves (%s); the race is run again", path, error)
            return None

    def keep(self, size_bytes: int, race: KeptRace) -> None:
        """Keep what won at a size, in place of what was there. Where that cannot be, a warning says so."""
        path = self._path(size_bytes)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(structs.asdict(race)) + "\n")
        except (OSError, TopoplanError) as error:
            log.warning("what the race at %d bytes found is not kept: %s", size_bytes, error)

    def _path(self, size_bytes: int) -> Path:
        return self._prefix.with_name(f"{self._prefix.name}-{size_bytes.bit_length()}.json")


def today() -> str:
    """Return the date, as kept races have it."""
    return date.today().isoformat()


def _describe(topology: Topology | None) -> object:
    if topology is None:
        return None
    data = topology.to_json()
    return [data["devices"], data["links"], data.get(HOST)]
