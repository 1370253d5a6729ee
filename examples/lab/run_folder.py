"""Exchange jobs and results between the starting process and its ranks, through a folder.

Does not import torch.
"""

import json
from pathlib import Path
from typing import Any, TypedDict


class TrainingJob(TypedDict):
    """The model, training, data and systems of one run's ranks; stored as JSON.

    `data` is the folder with the dataset's arrays, `topology` the topology's file; `plans` has the
    plan's file by system.
    """

    dataset: str
    classes: int
    data: str
    settings: dict[str, Any]
    systems: list[str]
    plans: dict[str, str]
    helpers: int
    topology: str


class Fault(TypedDict):
    """Why a rank failed, and during which system; `known` if the error is one of topoplan's own."""

    system: str
    why: str
    known: bool


class RunFolder:
    """The files of one run, through which the process that started it and its ranks exchange JSON.

    The starter writes "job", a TrainingJob; rank 0 writes "results", the measurements of each
    system, and notes its progress; a rank that fails writes its Fault, as "fault3" for rank 3.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def log(self, rank: int) -> Path:
        """Return the path of the file with the output of a rank and its libraries."""
        return self.path / f"rank{rank}.log"

    def write(self, name: str, value: object) -> None:
        """Write a value under a name."""
        (self.path / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")

    def read(self, name: str) -> Any:
        """Return what was written under a name, None if nothing was."""
        path = self.path / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def note_epoch(self, system: str) -> None:
        """Record that an epoch of the system of this name begins."""
        # Appended, so that the starter can read while rank 0 writes.
        with (self.path / "epochs").open("a", encoding="utf-8") as epochs:
            epochs.write(f"{system}\n")

    def read_epochs(self) -> list[str]:
        """Return the system's name for each epoch that has begun, in order."""
        path = self.path / "epochs"
        return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []

    def read_faults(self, ranks: int) -> list[Fault]:
        """Return the faults of those of `ranks` ranks that wrote one, known errors first."""
        return sorted(
            filter(None, (self.read(f"fault{rank}") for rank in range(ranks))),
            key=lambda fault: not fault["known"],
        )

    def read_last_line(self, ranks: int) -> str | None:
        """Return the last line printed by the first of `ranks` ranks that printed anything.

        None if none of them did.
        """
        for path in map(self.log, range(ranks)):
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            if text.strip():
                return text.rstrip().splitlines()[-1]
        return None
