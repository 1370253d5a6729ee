"""Probes this machine and records the result, for `make gpu-check`: a section in docs/hardware.md.

A machine with the same GPUs and driver replaces its own section. Ends with 1 where there is no GPU
that answers.
"""

from __future__ import annotations

import sys
from collections import Counter
from datetime import date
from pathlib import Path

from topoplan.topo.doctor import examine, report
from topoplan.topo.facts import Facts, load_facts
from topoplan.topo.facts.keys import NVML, NVML_DRIVER
from topoplan.topo.files import write_whole
from topoplan.topo.graph import Topology
from topoplan.topo.pictures import text_tree as tree
from topoplan.topo.probe.join import probe_local

HEAD = """# Hardware that topo-probe has seen

Written by `make gpu-check` on a machine with a GPU: what the live probe learned there, and what it
could not. Nothing here is typed by hand.
"""


def main(page: Path) -> int:
    """Probe, print and record; return the exit code."""
    topology = probe_local()
    facts = load_facts(topology.extra, topology.name)
    if not topology.ranks or facts.get_text(NVML, NVML_DRIVER) is None:
        print("gpu-check: no GPU answers through NVML here; nothing was recorded", file=sys.stderr)
        return 1
    title, section = _format_section(topology, facts)
    text = page.read_text(encoding="utf-8") if page.exists() else HEAD
    other_sections = [part for part in text.split("\n## ")[1:] if part.splitlines()[0] != title]
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
    if missing:
        lines += ["", "Not known:", ""]
        lines += [
            f"- `{key}` ({source}): {why}" + (f", {n} times" if n > 1 else "")
            for (key, source, why), n in missing.items()
        ]
    return title, "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1] / "docs/hardware.md"))
