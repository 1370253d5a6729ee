"""Probes this machine and records the result, for `make gpu-check`: a section in docs/hardware.md.

A machine with the same GPUs and driver replaces its own section. Ends with 1 where there is no GPU
that answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from topoplan.topo.extras.doctor import examine, report
from topoplan.topo.facts import Facts, load_facts
from topoplan.topo.facts.keys import NVML, NVML_DRIVER
from topoplan.topo.files import write_whole
from topoplan.topo.graph import Topology
from topoplan.topo.pictures import text_tree as tree
from topoplan.topo.probe.join import probe_local

ROOT = Path(__file__).resolve().parents[1]
BENCHMARK = str(ROOT / "benchmarks/kernels_on_gpu.py")
# Ranks that play the kernel together on one GPU, as streams of one process, and as processes: those
# take turns, of milliseconds each, so they make fewer calls.
KERNEL_STREAMS, KERNEL_RANKS, CALLS_IN_TURNS = (2, 4, 8), (2, 4), 200
KERNEL_LIMIT_S = 600

HEAD = """# Hardware that topo-probe has seen

Written by `make gpu-check` on a machine with a GPU: what the live probe learned there, and what it
could not. Nothing here is typed by hand.
"""
# The section, written by hand, of what has changed since the last record: this one ends it.
CHANGED = "Changed since, and not run on a GPU"


def main(page: Path) -> int:
    """Probe, print and record; return the exit code."""
    topology = probe_local()
    facts = load_facts(topology.extra, topology.name)
    if not topology.ranks or facts.get_text(NVML, NVML_DRIVER) is None:
        print("gpu-check: no GPU answers through NVML here; nothing was recorded", file=sys.stderr)
        return 1
    title, section = _format_section(topology, facts)
    text = page.read_text(encoding="utf-8") if page.exists() else HEAD
    replaced = {title, CHANGED}
    other_sections = [
        part for part in text.split("\n## ")[1:] if part.splitlines()[0] not in replaced
    ]
    head = text.split("\n## ")[0].rstrip()
    write_whole(
        page,
        "\n\n## ".join([head, *(part.strip() for part in other_sections), f"{title}\n\n{section}"])
        + "\n",
    )
    print(section)
    print(f"gpu-check: recorded in {page}", file=sys.stderr)
    return 0


def _format_section(topology: Topology, facts: Facts) -> tuple[str, str]:
    """Return title and text, without host name, UUIDs and addresses, which are private."""
    names = Counter(str(topology.by_id[gpu].extra.get("name") or "GPU") for gpu in topology.ranks)
    gpus = ", ".join(f"{n} x {name}" for name, n in names.items())
    title = f"{gpus}, driver {facts.get_text(NVML, NVML_DRIVER)}"
    missing = Counter((fact.key, fact.source, fact.missing) for fact in facts.missing)
    known = sum(fact.value is not None for fact in facts.items)
    lines = [
        f"Seen on {date.today().isoformat()}: {known} facts known, {sum(missing.values())} not.",
        "",
    ]
    lines += [
        "```text",
        *tree.write(topology).splitlines()[1:],
        "```",
        "",
        "```text",
        *report(examine(topology)),
        "```",
    ]
    lines += ["", *_check_kernels()]
    if missing:
        lines += ["", "Not known:", ""]
        lines += [
            f"- `{key}` ({source}): {why}" + (f", {n} times" if n > 1 else "")
            for (key, source, why), n in missing.items()
        ]
    return title, "\n".join(lines)


def _check_kernels() -> list[str]:
    """Play random calls by the kernel on ranks that share a GPU; return what came of it."""
    if find_spec("triton") is None:
        return ["Kernels: not checked, since Triton is not installed (extra `kernels`)."]
    import torch

    if not torch.cuda.is_available():
        return ["Kernels: not checked, since torch cannot use the GPUs."]
    lines = []
    for ranks in KERNEL_STREAMS:
        row = _measure_kernels([sys.executable, BENCHMARK, "--streams", str(ranks)])
        what = f"Kernels, {ranks} ranks as streams of one process: "
        if row is None:
            lines += [f"{what}no result.", ""]
            continue
        times = ", ".join(
            f"{entry['us']} us for {entry['bytes']:,} bytes ({entry['schedule']})"
            for entry in row["times"]
            if entry["mode"] == "pull"
        )
        lines += [f"{what}{row['wrong']} of {row['calls']} calls wrong. Allreduce from a CUDA "]
        lines += [f"graph, in the memory of one GPU and over no link: {times}.", ""]
    for ranks in KERNEL_RANKS:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        calls = ["--calls", str(CALLS_IN_TURNS)]
        row = _measure_kernels([*torchrun, f"--nproc-per-node={ranks}", BENCHMARK, *calls])
        what = f"Kernels, {ranks} ranks as processes"
        lines += [
            f"{what}: no result."
            if row is None
            else f"{what} on {row['cards']} GPU(s): {row['wrong']} of {row['calls']} "
            f"eager calls and as many from a CUDA graph wrong; a call of one element "
            f"{row['eager_us']} us, from a graph {row['graph_us']} us (on one GPU processes take "
            "turns).",
            "",
        ]
    return lines


def _measure_kernels(command: list[str]) -> dict[str, Any] | None:
    """Return the row that the benchmark prints, None if it prints none."""
    print(f"gpu-check: {' '.join(command[1:])}", file=sys.stderr)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=KERNEL_LIMIT_S)
        row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        print(f"gpu-check: no result: {error!r}", file=sys.stderr)
        return None
    return row


if __name__ == "__main__":
    sys.exit(main(ROOT / "docs/hardware.md"))
