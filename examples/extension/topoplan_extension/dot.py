"""topo-synth --format dot: which share of the buffer goes from rank to rank, for Graphviz."""

from collections import defaultdict

from topoplan import Entry, Plan
from topoplan.synth.schedule_format import ScheduleFiles, ScheduleFormat


def _write(plan: Plan, entry: Entry, size_bytes: int) -> ScheduleFiles:
    sent, chunks = defaultdict[tuple[int, int], float](float), entry.schedule.chunks
    for transfer in entry.schedule.transfers:
        sent[transfer.src, transfer.dst] += float(chunks[transfer.chunk].share)
    edges = [f'  {a} -> {b} [label="{x:.3g}"]' for (a, b), x in sorted(sent.items())]
    text = "\n".join(["digraph {", *edges, "}", ""])
    return ScheduleFiles({"": text}, {"edges": len(edges)}, (f"{len(edges)} pairs of ranks",))


FORMAT = ScheduleFormat(_write)
