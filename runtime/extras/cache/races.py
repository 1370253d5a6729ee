"""Cache the results of races, so that the next start need not time the same schedules again.

A race times several schedules and the backend's own (stock) collective at one message size.
"""

import hashlib
import json
import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta, Struct, structs

from ....topo.errors import InputError, TopoplanError
from ....topo.files import write_whole
from ....topo.schema import Index, Label, read_as
from ....topo.version import VERSION
from ...cache import Contest
from .folder import warn_without_cache

log = logging.getLogger("topoplan")

# Cached races, of which the oldest are removed: some 25 sizes of 40 plans, in 1 MiB altogether.
MAX_FILES = 1024
# Longest file that is read: a race of all candidates takes under 4,000 characters.
_MAX_CHARS = 1 << 16
# Names of cached races, and of incomplete files that a killed process left.
_OWN_NAME = re.compile(r"\.?[0-9a-f]{32}-\d+\.json(\..*\.tmp)?")

# Microseconds. The upper bound keeps out infinity, to which every time would be near.
_Time = Annotated[float, Meta(gt=0, le=1e12)]


class CachedRace(Struct, frozen=True):
    """The result of a race at one size.

    `winner` and `own` are indices into `Candidates.all` (ranking.py): the fastest candidate (None:
    the stock collective), and the fastest schedule of the plan, which runs for types of elements
    that stock cannot do; `labels` are their names. `time_us` is the winner's median microseconds,
    `raced_us` each candidate's by name; `raced_on` is the date.
    """

    winner: Index | None
    own: Index
    labels: tuple[Label, Label]
    time_us: _Time
    raced_us: dict[Label, _Time]
    raced_on: Label


class CachedRaces:
    """The cached races of one plan on one machine, in `folder` (None: nothing is cached).

    File names are hashes of the inputs that decide which schedule wins. Host costs are not among
    them: they are measured, so differ from start to start, and only decide which schedules race.
    `contest` has the schedules that race, and what else decides which one wins.
    """

    def __init__(self, folder: Path | None, contest: Contest[Any]) -> None:
        machine, device = contest.machine, contest.device
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        host = machine.host
        links = None if machine.topology is None else machine.topology.to_json()
        inputs = [
            contest.plan_hash,
            links and [links["devices"], links["links"]],
            machine.what,
            machine.batched,
            [host.cores, host.wire, host.burst_bytes],  # of the machine; never fitted
            gpu,
            contest.wire_format,
            contest.with_stock,
            contest.players,
            torch.__version__,
            VERSION,
        ]
        self.folder = folder
        self._key = hashlib.sha256(json.dumps(inputs, default=str).encode()).hexdigest()[:32]

    def find(self, size_bytes: int) -> CachedRace | None:
        """Return the cached race at a size, rounded down to a power of two; None if none is usable.

        A file that is damaged or not a race is logged as a warning.
        """
        if self.folder is None:
            warn_without_cache(None)
            return None
        path = self._path(self.folder, size_bytes)
        try:
            return _read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None  # nothing is cached yet; if a file is in the folder's place, `save` warns
        except OSError as error:
            warn_without_cache(self.folder, error)
        except (ValueError, RecursionError, TopoplanError) as error:
            log.warning("%s: not a cached race (%s); it is raced again", path, error)
        return None

    def save(self, size_bytes: int, race: CachedRace) -> None:
        """Cache the race at a size, rounded down to a power of two, in place of an earlier one.

        If that fails, warn once.
        """
        if self.folder is None:
            warn_without_cache(None)
            return
        path = self._path(self.folder, size_bytes)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(structs.asdict(race)) + "\n", follow_links=False)
            _remove_oldest(path.parent)
        except (OSError, ValueError, TopoplanError) as error:
            warn_without_cache(self.folder, error)

    def _path(self, folder: Path, size_bytes: int) -> Path:
        return folder / "races" / f"{self._key}-{size_bytes.bit_length()}.json"


def _read(path: Path) -> CachedRace:
    if not path.is_file() and path.exists():  # reading a FIFO would wait for ever
        raise InputError("not a regular file")
    with path.open(encoding="utf-8") as file:
        text = file.read(_MAX_CHARS + 1)
    if len(text) > _MAX_CHARS:
        raise InputError(f"longer than {_MAX_CHARS} characters")
    return read_as(json.loads(text), CachedRace, "its content")


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest races beyond MAX_FILES. Files with other names are not touched.

    So races that are no longer used (of another version, or another machine) are removed.
    """
    own = [path for path in folder.iterdir() if _OWN_NAME.fullmatch(path.name)]
    if len(own) <= MAX_FILES:
        return
    written: list[tuple[float, Path]] = []
    for path in own:
        with suppress(FileNotFoundError):  # another process removed it
            written.append((path.stat().st_mtime, path))
    for _, path in sorted(written)[: max(0, len(written) - MAX_FILES)]:
        path.unlink(missing_ok=True)
