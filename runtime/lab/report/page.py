"""Format the report as cells of a table, as Markdown, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from ..settings import Settings
from ..systems import SERIAL, SYSTEMS
from ..training.dataset import Dataset
from .findings import list_findings
from .results import RunResult

HEAD = (
    "network",
    "ranks",
    "system",
    "schedule",
    "epoch 1 s",
    "epoch s",
    "vs stock",
    "MB/epoch",
    "accuracy %",
    "vs serial",
)


@dataclass(frozen=True)
class LabReport:
    """Everything in a report; `command` is the command line that repeats it."""

    rows: list[RunResult]
    settings: Settings
    dataset: Dataset
    environment: dict[str, str]
    command: str

    @property
    def failed(self) -> bool:
        """Whether any run failed."""
        return any(row.failed for row in self.rows)

    @property
    def task(self) -> str:
        """The dataset, model and training, as text."""
        data, settings = self.dataset, self.settings
        widths = "-".join(map(str, settings.widths(data.features, data.classes)))
        return (
            f"{data.name}: {len(data.train_y)} samples to train on, {len(data.test_y)} held out, "
            f"{data.classes} classes; "
            f"perceptron {widths}, {settings.parameters(data.features, data.classes)} parameters; "
            f"{settings.epochs} epochs, "
            f"batches of {settings.batch}, SGD with momentum 0.9, rate {settings.learning_rate:g} "
            "falling to 0, "
            f"seed {settings.seed}"
        )

    @property
    def findings(self) -> list[str]:
        """Sentences on what the figures show."""
        return list_findings(self.rows, len(self.dataset.test_y))

    def cells(self) -> list[tuple[str, ...]]:
        """Return the table's rows; a schedule of "failed" or "not run" marks one without
        figures.
        """
        return [self._format_row(row) for row in self.rows]

    def _format_row(self, row: RunResult) -> tuple[str, ...]:
        ranks = str(row.ranks)
        network = "" if row.system == SERIAL else row.network
        if row.epoch_s is None or row.first_epoch_s is None or row.accuracy_percent is None:
            return network, ranks, row.system, "failed" if row.failed else "not run", *["-"] * 6
        return (
            network,
            ranks,
            row.system,
            row.schedule or "-",
            f"{row.first_epoch_s:.3f}",
            f"{row.epoch_s:.3f}",
            self._compare_with_stock(row),
            "-" if row.bytes_per_epoch is None else f"{row.bytes_per_epoch / 1e6:.2f}",
            f"{row.accuracy_percent:.2f}",
            "-"
            if row.serial_points is None or row.system == SERIAL
            else f"{row.serial_points:+.2f}",
        )

    def _compare_with_stock(self, row: RunResult) -> str:
        stock = next(
            (r.epoch_s for r in self.rows if r.site == row.site and r.system == "stock"), None
        )
        return "-" if stock is None or not row.epoch_s else f"{stock / row.epoch_s:.2f}x"

    def markdown(self) -> str:
        """Return the whole report as Markdown."""
        used = [name for name in SYSTEMS if any(row.system == name for row in self.rows)]
        return "\n".join(
            [
                "# Lab report",
                "",
                self.task + ".",
                "",
                *_format_table(
                    ("system", "what it is"), [(name, SYSTEMS[name].what) for name in used]
                ),
                "",
                "## Results",
                "",
                *_format_table(HEAD, self.cells()),
                "",
                *[line for finding in self.findings for line in (f"{_escape(finding)}", "")],
                "## Environment",
                "",
                *_format_table(("", ""), list(self.environment.items())),
                "",
                "## How it was measured",
                "",
                METHOD,
                "",
                "To repeat it:",
                "",
                f"    {self.command}",
                "",
            ]
        )

    def json(self) -> dict[str, Any]:
        """Return the whole report as one object."""
        data = self.dataset
        return {
            "dataset": {
                "name": data.name,
                "classes": data.classes,
                "features": data.features,
                "trained_on": len(data.train_y),
                "held_out": len(data.test_y),
            },
            "settings": asdict(self.settings),
            "rows": [asdict(row) for row in self.rows],
            "findings": self.findings,
            "environment": self.environment,
            "command": self.command,
        }

    def text(self, path: str) -> str:
        """Return what to write to a file of that name: JSON for .json, else Markdown."""
        return (
            json.dumps(self.json(), indent=1) + "\n" if path.endswith(".json") else self.markdown()
        )


METHOD = """\
All runs train the same model on the same batches, from the same seed. Ranks share a batch; each
uses one thread. The systems of one network and number of ranks are trained in the same processes,
taking turns by epoch, so that they see the same machine. Before that, the host costs of a message
and a byte are fitted, as by topo-run --calibrate. An epoch's time is the slowest rank's, from a
barrier on; "epoch s" is the median without epoch 1, in which schedules race and DDP settles its
buckets. "MB/epoch" is what all ranks together send, as the kernel counts what arrives on their TCP
connections (with the same median; payload with gloo's own headers, without those of TCP and IP).
"schedule" is what most gradients went through; "stock" there means that the backend's allreduce won
the race. Accuracy is that of the last epoch's model on the held-out samples. Emulated networks are
network namespaces with rate-limited links."""


def _format_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(_escape(cell) for cell in line) + " |" for line in lines]


def _escape(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
