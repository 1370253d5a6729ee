"""What programs post over NCCL, counted on the stand-in: batches, messages and bytes of a rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from nccl_standin import NcclStandIn

import topoplan
from goldens.plans import find_machine
from topoplan.runtime.candidates import Candidate
from topoplan.runtime.codec import find_codec
from topoplan.runtime.compiled import Buffers
from topoplan.runtime.program.layout import ends_numel
from topoplan.runtime.runners.programs import Messages
from topoplan.synth.ir.schedule import Schedule

_NUMEL = 40_320  # divisible by the ranks of all machines below
# Collective, machine, strategy.
_PLANS: tuple[tuple[Any, str, str], ...] = (
    ("allreduce", "ring:4", "ring"),
    ("allreduce", "dgx1", "packing"),
    ("allreduce", "dgx-a100", "packing"),
    ("allreduce", "dgx-a100:2", "packing"),
    ("allreduce", "dgx-a100:2", "hierarchical"),
    ("allreduce", "mesh:2x2", "greedy"),
    ("allreduce", "switch:8", "halving-doubling"),
    ("allreduce", "switch:7", "double-tree"),
    ("allreduce", "full:4", "one-shot"),
    ("allreduce", "full:4", "direct"),
    ("allreduce", "three-hosts", "chains"),
    ("allreduce", "slow-link", "packing"),
    ("allgather", "dgx1", "packing"),
    ("allgather", "one-way", "packing"),
    ("reduce-scatter", "mesh:2x3", "greedy"),
    ("broadcast", "path:4", "packing"),
    ("reduce", "star:5", "packing"),
    ("gather", "full:4", "direct"),
    ("scatter", "full:4", "direct"),
    ("alltoall", "switch:8", "direct"),
)


def record() -> dict[str, Any]:
    """Return the counts of each plan's schedules, whole and in segments, by the ranks."""
    rows: dict[str, Any] = {}
    for collective, machine, strategy in _PLANS:
        plan = topoplan.synthesize(collective, find_machine(machine), strategy)
        for uncut in dict.fromkeys(schedule.uncut for schedule in plan.schedules):
            for schedule in (uncut, replace(uncut, segments=3)):
                name = f"{collective} {machine} {schedule.label}, {len(uncut.chunks)} chunks"
                rows[name] = count_posted(schedule)
    one_shot = topoplan.synthesize("allreduce", "full:4", "one-shot").entries[0].schedule
    return {**rows, "allreduce full:4 one-shot, int8": count_posted(one_shot, "int8")}


def count_posted(schedule: Schedule, codec: str | None = None) -> list[str]:
    """Return what each rank posts in a call: ranks that post the same are in one line."""
    standin = NcclStandIn(schedule.collective.ranks)
    for rank in range(schedule.collective.ranks):
        numels = ends_numel(schedule.collective, rank, _NUMEL)
        source, target = torch.ones(numels[0]), torch.zeros(numels[1])
        if schedule.collective.name in ("allreduce", "reduce", "broadcast"):
            source = target = torch.ones(_NUMEL)
        with standin.host_of(rank) as transport:
            sender = Messages(transport, None, None if codec is None else find_codec(codec))
            sender.run(Candidate(schedule), Buffers(_NUMEL, source, target))
    standin.play()
    lines: dict[str, list[int]] = {}
    for host in standin.hosts:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(host.counts.items()))
        lines.setdefault(f"{host.posted} batches, {counts}", []).append(host.rank)
    return [f"rank {', '.join(map(str, ranks))}: {line}" for line, ranks in lines.items()]
