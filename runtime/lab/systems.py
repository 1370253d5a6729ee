"""Through what gradients are averaged: every system that a report can have a row for."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from ...topo.errors import InputError

SERIAL = "serial"
ALL = "all"


@dataclass(frozen=True)
class System:
    """One of them. `strategy` is what its plan is synthesized by (None: it needs no plan), `choose` and `compress` are
    what ddp_hook gets. Those that are `classic` come from runtime/classic, with so many `helpers`, ranks without a model.
    """

    name: str
    what: str
    strategy: str | None = None
    choose: str = "race"
    compress: str | None = None
    classic: bool = False
    helpers: int = 0


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System(SERIAL, "one process, no communication"),
        System("stock", "DistributedDataParallel as it comes, over the backend's own allreduce"),
        System(
            "ring", "rings over the topology's best cycles (Baidu, Horovod), never another schedule", "ring", "model"
        ),
        System("hierarchical", "inside each host first, then between hosts", "hierarchical", "model"),
        System("plan", "topoplan's schedules; stock stays in the race and is used where it is faster", "auto"),
        System("plan-fp16", "the same, half-precision values on the wire, error feedback", "auto", compress="fp16"),
        System("plan-bf16", "the same, bfloat16", "auto", compress="bf16"),
        System("plan-fp8", "the same, fp8 (e4m3) with a scale for each block", "auto", compress="fp8"),
        System("plan-fp8-e5m2", "the same, fp8 (e5m2)", "auto", compress="fp8-e5m2"),
        System("plan-int8", "the same, int8 with a scale for each block", "auto", compress="int8"),
        System("gather", "gradients to the first rank, parameters back (DataParallel)", classic=True),
        System(
            "parameter-server",
            "two helpers without GPUs and all ranks add up a share each (BytePS)",
            classic=True,
            helpers=2,
        ),
        System(
            "async-parameter-server",
            "two helpers apply each gradient as it comes (Downpour SGD)",
            classic=True,
            helpers=2,
        ),
        System("neighbours", "parameters averaged with the neighbours' on the topology's graph (D-PSGD)", classic=True),
        System("neighbours-8bit", "the same, 8-bit differences on the wire (DCD-PSGD, Bagua)", classic=True),
        System("bytegrad", "8-bit gradients scattered, added in full precision, gathered (Bagua)", classic=True),
    )
}
"""All of them by name, in the order of the table."""

DEFAULT = ("serial", "stock", "ring", "plan", "plan-fp16", "plan-int8")


def parse_systems(text: str) -> tuple[System, ...]:
    """The systems that a list such as `serial,stock,plan` names, in the table's order. InputError for an unknown one."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InputError("--systems: names none; expected some of " + ", ".join(SYSTEMS))
    for name in names:
        if name not in SYSTEMS and name != ALL:
            near = difflib.get_close_matches(name, SYSTEMS, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise InputError(
                f"--systems: {name[:40]!r} is unknown{hint}; expected some of {', '.join(SYSTEMS)}, or all"
            )
    return tuple(system for system in SYSTEMS.values() if ALL in names or system.name in names)
