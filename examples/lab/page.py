"""Format the report as cells of a table, as Markdown, as JSON, and as bars in SVG."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from topoplan.synth.pictures.drawing import choose_step, draw_text, start_svg

from .results import RunResult, list_findings
from .settings import Settings
from .systems import SERIAL, SYSTEMS
from .training.dataset import Dataset

# Sizes in pixels.
_WIDTH = 760
_LEFT, _RIGHT, _TOP, _BOTTOM = 190, 150, 34, 34
_BAR, _ROW, _HEAD = 14, 22, 30

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
        return (
            f"{data.name}: {len(data.train_y)} samples to train on, {len(data.test_y)} held out, "
            f"{data.classes} classes; "
            f"perceptron {'-'.join(map(str, settings.widths(data.features, data.classes)))}, "
            f"{settings.parameters(data.features, data.classes)} parameters; "
            f"{settings.epochs} epochs, "
            f"batches of {settings.batch}, SGD with momentum 0.9, rate {settings.learning_rate:g} "
            "falling to 0, "
            f"seed {settings.seed}"
        )

    @property
    def findings(self) -> list[str]:
        """Sentences that interpret the figures."""
        return list_findings(self.rows, len(self.dataset.test_y))

    def cells(self) -> list[tuple[str, ...]]:
        """Return the table's rows as text, without its head, one per result.

        In a row without figures the schedule is "failed" or "not run".
        """
        stock_s = {row.site: row.epoch_s for row in self.rows if row.system == "stock"}
        return [self._format_row(row, stock_s.get(row.site)) for row in self.rows]

    def _format_row(self, row: RunResult, stock_s: float | None) -> tuple[str, ...]:
        head = "" if row.system == SERIAL else row.network, str(row.ranks), row.system
        if row.epoch_s is None or row.first_epoch_s is None or row.accuracy_percent is None:
            return *head, "failed" if row.failed else "not run", *["-"] * 6
        return (
            *head,
            row.schedule or "-",
            f"{row.first_epoch_s:.3f}",
            f"{row.epoch_s:.3f}",
            "-" if stock_s is None or not row.epoch_s else f"{stock_s / row.epoch_s:.2f}x",
            "-" if row.bytes_per_epoch is None else f"{row.bytes_per_epoch / 1e6:.2f}",
            f"{row.accuracy_percent:.2f}",
            "-"
            if row.serial_points is None or row.system == SERIAL
            else f"{row.serial_points:+.2f}",
        )

    def markdown(self) -> str:
        """Return the whole report as Markdown."""
        used = {row.system for row in self.rows}
        return "\n".join(
            [
                "# Lab report",
                "",
                self.task + ".",
                "",
                *_format_table(
                    ("system", "what it is"),
                    [(name, system.what) for name, system in SYSTEMS.items() if name in used],
                ),
                "",
                "## Results",
                "",
                *_format_table(HEAD, self.cells()),
                "",
                *[line for finding in self.findings for line in (_escape(finding), "")],
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
            "format": "topoplan-lab",
            "version": 1,
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
        """Return the report as `path` is to hold it: JSON if it ends in .json, else Markdown."""
        return (
            json.dumps(self.json(), indent=1) + "\n" if path.endswith(".json") else self.markdown()
        )


METHOD = """\
All runs train the same model on the same batches, from the same seed. Ranks share a batch; each
uses one thread. The systems of one network and number of ranks are trained in the same processes,
taking turns by epoch, so that they see the same machine. An epoch's time is the slowest rank's,
from a barrier on; "epoch s" is the median without epoch 1, in which schedules race and DDP settles
its buckets. "MB/epoch" is what all ranks together send, as the kernel counts what arrives on their
TCP connections (with the same median; payload with gloo's own headers, without those of TCP and
IP). "schedule" is what most gradients went through; "stock" there means that the backend's
allreduce won the race, "undecided" that no race had ended by the last step. Accuracy is that of the
last epoch's model on the held-out samples. Emulated networks are network namespaces with
rate-limited links."""


def _format_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [
        "| " + " | ".join(_escape(cell) for cell in line) + " |"
        for line in (head, ("---",) * len(head), *rows)
    ]


def _escape(text: str) -> str:
    # A bar would end the cell, and a line break the row.
    return " ".join(text.replace("|", "\\|").split())


def draw_bars(title: str, rows: Sequence[RunResult], *, alone: bool = False) -> str:
    """Return an SVG of the seconds per epoch of each system, and its speed relative to stock.

    Stock has its own colour. Runs without figures are listed with the reason in place of a bar.
    """
    sites = list(dict.fromkeys(row.site for row in rows))
    stock_s = {row.site: row.epoch_s for row in rows if row.system == "stock"}
    longest = max((row.epoch_s for row in rows if row.epoch_s is not None), default=1.0)
    height = _TOP + _BOTTOM + _HEAD * len(sites) + _ROW * len(rows)
    width = _WIDTH - _LEFT - _RIGHT
    lines = start_svg(_WIDTH, height, title, alone=alone)
    lines.append(draw_text(8, 20, title, 14))
    step, bottom = choose_step(longest), height - _BOTTOM
    for i in range(int(longest / step) + 1):
        x = _LEFT + width * i * step / longest
        lines.append(f'<path class="g" d="M{x:.1f} {_TOP + 4}V{bottom}"/>')
        lines.append(draw_text(x, bottom + 14, f"{i * step:g}", 11, anchor="middle", look="f"))
    lines.append(draw_text(_WIDTH - 8, bottom + 14, "seconds an epoch", 11, anchor="end", look="f"))
    y = float(_TOP)
    for network, ranks in sites:
        lines.append(draw_text(8, y + 20, f"{network}, {ranks} rank{'s' if ranks > 1 else ''}", 13))
        y += _HEAD
        for row in (row for row in rows if row.site == (network, ranks)):
            lines += _draw_row(row, stock_s.get(row.site), y, width / longest)
            y += _ROW
    return "\n".join([*lines, "</svg>"]) + "\n"


def _draw_row(row: RunResult, stock_s: float | None, y: float, pixels_a_second: float) -> list[str]:
    middle = y + _BAR - 3
    name = draw_text(_LEFT - 8, middle, row.system, 12, anchor="end")
    if row.epoch_s is None:
        reason = f"{'failed' if row.failed else 'not run'}: {row.reason or 'no figures'}"
        return [name, draw_text(_LEFT + 4, middle, reason, 11, look="f")]
    # At least a pixel, as a shorter bar would not be seen.
    length = max(1.0, row.epoch_s * pixels_a_second)
    title = f"{row.system}: {row.epoch_s:.3f} s, {row.schedule or 'no schedule'}"
    compared = (
        f", {stock_s / row.epoch_s:.2f}x stock"
        if stock_s and row.epoch_s and row.system != "stock"
        else ""
    )
    return [
        name,
        f'<rect class="{"fs" if row.system == "stock" else "fp"}" x="{_LEFT}" y="{y:.1f}" '
        f'width="{length:.1f}" height="{_BAR}"><title>{escape(title)}</title></rect>',
        draw_text(_LEFT + length + 6, middle, f"{row.epoch_s:.3f} s{compared}", 11, look="f"),
    ]
