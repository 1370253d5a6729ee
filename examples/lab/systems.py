"""List the systems that a report compares; each averages gradients by another method."""

from dataclasses import dataclass

from topoplan import InputError
from topoplan.topo.errors import suggest

SERIAL = "serial"
ALL = "all"


@dataclass(frozen=True)
class LabSystem:
    """One system: its name, and how it averages gradients.

    `what` describes it in the report. `strategy` synthesizes its plan, None if it needs no plan;
    `choose` and `compress` are arguments of ddp_hook. A `classic` system is one of
    examples/classic; `helpers` is the number of ranks without a model that it needs.
    """

    name: str
    what: str
    strategy: str | None = None
    choose: str = "race"
    compress: str | None = None
    classic: bool = False
    helpers: int = 0


# All systems by name, in the order of the table.
SYSTEMS: dict[str, LabSystem] = {
    system.name: system
    for system in (
        LabSystem(SERIAL, "one process, no communication"),
        LabSystem("stock", "unmodified DistributedDataParallel, over the backend's own allreduce"),
        LabSystem(
            "ring",
            "rings over the topology's best cycles (Baidu, Horovod), never another schedule",
            "ring",
            "model",
        ),
        LabSystem(
            "hierarchical", "inside each host first, then between hosts", "hierarchical", "model"
        ),
        LabSystem(
            "plan",
            "topoplan's schedules; stock stays in the race and is used if it is faster",
            "auto",
        ),
        LabSystem(
            "plan-fp16",
            "the same, half-precision values on the wire, error feedback",
            "auto",
            compress="fp16",
        ),
        LabSystem("plan-bf16", "the same, bfloat16", "auto", compress="bf16"),
        LabSystem(
            "plan-fp8", "the same, fp8 (e4m3) with a scale for each block", "auto", compress="fp8"
        ),
        LabSystem("plan-fp8-e5m2", "the same, fp8 (e5m2)", "auto", compress="fp8-e5m2"),
        LabSystem(
            "plan-int8", "the same, int8 with a scale for each block", "auto", compress="int8"
        ),
        LabSystem(
            "gather", "gradients to the first rank, parameters back (DataParallel)", classic=True
        ),
        LabSystem(
            "parameter-server",
            "two helpers without GPUs and all ranks each sum a share (BytePS)",
            classic=True,
            helpers=2,
        ),
        LabSystem(
            "async-parameter-server",
            "two helpers apply each gradient as it arrives (Downpour SGD)",
            classic=True,
            helpers=2,
        ),
        LabSystem(
            "neighbours",
            "parameters averaged with the neighbours' on the topology's graph (D-PSGD)",
            classic=True,
        ),
        LabSystem(
            "neighbours-8bit",
            "the same, 8-bit differences on the wire (DCD-PSGD, Bagua)",
            classic=True,
        ),
        LabSystem(
            "bytegrad",
            "8-bit gradients scattered, summed in full precision, gathered (Bagua)",
            classic=True,
        ),
    )
}

DEFAULT = ("serial", "stock", "ring", "plan", "plan-fp16", "plan-int8")


def parse_systems(text: str) -> tuple[LabSystem, ...]:
    """Parse a list such as `serial,stock,plan` into systems in the table's order.

    `all` selects every system. Raise InputError for an unknown or missing name.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InputError(
            "no system given; expected some of " + ", ".join(SYSTEMS), parameter="systems"
        )
    for name in names:
        if name not in SYSTEMS and name != ALL:
            raise InputError(
                f"{name[:40]!r} is unknown{suggest(name, SYSTEMS)}; expected some of "
                f"{', '.join(SYSTEMS)}, or all",
                parameter="systems",
            )
    return tuple(system for system in SYSTEMS.values() if ALL in names or system.name in names)
