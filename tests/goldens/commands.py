"""What commands print and write, and how they end: `--json` in full, texts, errors, exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from launch import Ended, run_module
from shown_commands import make_folder

from goldens.store import INPUTS
from topoplan.cli.commands import import_command

# As many at once as the two cores that the goldens are meant for.
_AT_ONCE = 2
# Far above what its searches take: one that the limit ends gives another page.
_REPORT = "-o page.html --time-limit 60"
_PLAN = "topo-synth allreduce ring:2 -q -o plan.json"
_RUN = "topo-run plan.json --choose plan -b 1K -e 4K -n 1 -w 0"
# Lines that are joined by && run one after the other, in a folder of their own with the examples.
LINES = (
    "topo-probe dgx1 --json",
    "topo-probe dgx-a100:2",
    "topo-probe pcie-2socket --format tree",
    "topo-probe dgx1 --format smi",
    "topo-probe dgx-a100 --format nccl-xml",
    "topo-probe ring:4 --format dot",
    "topo-probe mi300x --format heat-map -o rates.svg",
    "topo-probe ring:4 --format svg",
    "topo-probe two-hosts.json --csv links.csv -q",
    "topo-probe pcie-2socket --check",
    "topo-probe topo.xml --for-vm -o vm.xml",
    "topo-probe matrix.txt topo.xml --network 25 --rate pcie=48 --json",
    "topo-probe matrix.txt --gpu B200 --json",
    "topo-probe topology.conf --box dgx1 --network 25 --json",
    "topo-probe no-such-machine",
    "topo-probe dgx1 --format pptx",
    "topo-probe dgx1 --rate pcie=fast",
    "topo-probe dgx1 -o rates.svg && topo-probe dgx1 -o rates.svg",
    "topo-synth allreduce ring:4 --json",
    "topo-synth allreduce dgx1 --json",
    "topo-synth allgather dgx-a100:2 --json --strategy packing --max-trees 4",
    "topo-synth reduce-scatter mesh:2x3 --json --strategy greedy --size 1M",
    "topo-synth broadcast star:5 --root 2 --json",
    "topo-synth alltoall full:4 --json",
    "topo-synth allreduce ring:4 --json --explain",
    "topo-synth allreduce mesh:4x4 --json --bound-only",
    "topo-synth allgather ring:4 --json --pareto",
    "topo-synth allgather ring:3 --json --instance 1,1,2 --instance 1,2,2",
    "topo-synth allreduce mesh:2x2 --json --spare links",
    "topo-synth allreduce ring:4 --json --reproducible",
    "topo-synth allreduce mi300x --group 0,1 --json",
    "topo-synth allreduce full:4 --size 9K --groups 'a=0,1|2,3 b=0,2|1,3' --json",
    "topo-synth alltoallv two-hosts.json --traffic bytes.csv --json",
    "topo-synth dgx-a100:2 --demands weights.json --json",
    "topo-synth allreduce dgx1 --without-link 0:3 --scale-link 1:2=0.5 --json",
    "topo-synth allreduce ring:4 --strategy file:ring.xml --json",
    "topo-synth allreduce ring:4 --csv rows.csv --trace trace.json --plot plan.svg",
    "topo-synth all_reduce topo.xml --format nccl-graph --no-guard",
    "topo-synth allreduce dgx1 --format rccl-env --json -o rccl.env",
    "topo-synth allreduce spark-ring:4 --format nccl-env -o nccl.env",
    "topo-synth allreduce ring:4 --strategy ring --format mscclpp -o plan.json",
    "topo-synth allreduce",
    "topo-synth allreduce ring:4 --strategy fastest",
    "topo-synth allreduce ring:4 --root 1",
    "topo-synth allgather ring:3 --json --instance 1,1,1",
    "topo-synth allreduce ring:4 --strategy direct",
    "topo-judge --topology dgx-a100 all_reduce_perf.txt --json",
    "topo-judge --topology dgx-a100 all_reduce_perf.txt --prometheus",
    "topo-judge --topology dgx-a100 all_reduce_perf.txt --at-least 0.8",
    "topo-judge --topology dgx-a100 nccl.log --json",
    "topo-judge graph.xml --json --csv shares.csv",
    "topo-judge --topology dgx-a100 ring.xml",
    "topo-place dgx1 --json",
    "topo-place dgx1 --for stock --json",
    "topo-place dgx-a100:2 --job dp=2,tp=8 --traffic dp=allreduce:1G,tp=96x64M --json",
    "topo-place two-hosts.json --traffic bytes.csv --order 0,2,1,3 --json",
    "topo-place dgx-a100:2 --without-rank 3 --reserve 8 --format rankfile",
    "topo-place topology.conf --box dgx1 --format slurm",
    "topo-place dgx1 --job dp=3,tp=2",
    f"topo-report ring:4 {_REPORT}",
    f"topo-report pcie-2socket --pictures svg {_REPORT}",
    f"{_PLAN} && topo-report plan.json {_REPORT}",
    f"{_PLAN} && {_RUN} --json",
    f"{_PLAN} && {_RUN} --json --dtype bf16 --op avg --place both --executor point-to-point",
    f"{_PLAN} && {_RUN} --json --compress int8 --reduction once",
    "topo-run --stock --nproc 2 --collective all_reduce,all_gather -e 1K -n 1 -w 0 --json",
    f"{_PLAN} && {_RUN} --topology ring:3",
    "topo-run missing.json",
    f"{_PLAN} && topo-run plan.json --dtype complex",
    "topo-emulate ring:4",
    "topo-emulate ring:4 --slowest fast -- true",
    "topo-emulate ring:4 --order 0,0,1,2 -- true",
    "topo-emulate ring:4 --inject 'cut gpu0-gpu9 at 2s' -- true",
    "topoplan",
    "topoplan --version",
    "topoplan prob",
    "topoplan completion bash",
)  # fmt: skip
# Fields with what this machine took for it; those of topo-run are measured throughout.
_MASKED = {"synthesis_s", "cpu_s", "search_s", "seconds"}
_MEASURED = {
    *("plan_us", "stock_us", "ratio", "predicted_us", "algbw_GBps", "busbw_GBps"),
    *("bound_fraction", "average_busbw_GBps"),
}
_MASK = "(masked)"


def record() -> dict[str, Any]:
    """Return what each line gives."""
    # A search may depend on these, and messages on the width of the terminal.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOPOPLAN_")}
    with (
        mock.patch.dict(os.environ, {**clean, "COLUMNS": "100"}, clear=True),
        ThreadPoolExecutor(_AT_ONCE) as workers,
    ):
        return dict(zip(LINES, workers.map(_run_line, LINES), strict=True))


def _run_line(line: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="goldens-") as name:
        folder = make_folder(Path(name) / "work")
        shutil.copytree(INPUTS, folder, dirs_exist_ok=True)
        given = {path.name for path in folder.iterdir()}
        for command in line.split(" && "):
            program, *arguments = shlex.split(command)
            done = run_module(
                import_command(program.removeprefix("topo-")).main.__module__,
                *arguments,
                cwd=folder,
            )
        written = sorted(path for path in folder.iterdir() if path.name not in given)
        return _describe(
            done,
            {path.name: path.read_text(encoding="utf-8") for path in written},
            _MASKED | _MEASURED if program == "topo-run" else _MASKED,
        )


def _describe(done: Ended, files: dict[str, str], masked: set[str]) -> dict[str, Any]:
    """Return how a command ended, without what is empty."""
    parts = {
        "exit": done.returncode,
        "out": _read(done.stdout, masked),
        "err": _mask_text(done.stderr),
        "files": {name: _read(text, masked) for name, text in files.items()},
    }
    return {name: part for name, part in parts.items() if part or name == "exit"}


def _read(text: str, masked: set[str]) -> Any:
    """Return JSON with times masked; the text of a page; of other text its lines."""
    if text.startswith("{"):
        try:
            return _mask(json.loads(text), masked)
        except ValueError:  # several lines of JSON, or another language with braces
            return _mask_text(text)
    if text[:14].lower() == "<!doctype html":
        return _mask_text(_strip_tags(text)).splitlines()
    return _mask_text(text)


def _mask(value: Any, masked: set[str], name: str = "") -> Any:
    if name in masked:
        return _MASK
    if name == "rms_error" and value:  # processors sum squares in different orders
        return float(f"{value:.3g}")
    if isinstance(value, dict):
        return {field: _mask(item, masked, field) for field, item in value.items()}
    return [_mask(item, masked) for item in value] if isinstance(value, list) else value


def _strip_tags(page: str) -> str:
    """Return what a page says, a line for each element with text."""
    page = re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.DOTALL)
    lines = (line.strip() for line in re.sub(r"<[^>]*>", "\n", page).splitlines())
    return "\n".join(filter(None, lines))


def _mask_text(text: str) -> str:
    """Return a text with times of this run, dates, sizes of pages and temporary folders masked."""
    text = re.sub(r"\b(in|took|of) \d+(\.\d+)? s\b", r"\1 (masked) s", text)
    text = re.sub(r"\b20\d\d-\d\d-\d\d( \d\d:\d\d(:\d\d)?)?", "(date)", text)
    text = re.sub(r"\(\d+ kB\)", "(size)", text)
    return re.sub(r"/[^\s:]*goldens-[^/\s]*/work/?", "(folder)/", text)
