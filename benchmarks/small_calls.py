"""Published small calls over PCIe, beside what the kernel's model predicts for a plan there.

    python -m benchmarks small_calls

Microseconds of stock NCCL and of kernels that the authors wrote by hand, as they published them.
"predicted" is that of the fastest schedule of topoplan's plan, played by the kernel
(runtime/extras/kernels/model.py), where the publication describes the machine well enough to plan
for it: a prediction with NCCL's own constants for launch and hop, not a measurement. Nothing of it
has run on several GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from harness import Table, make_parser

from topoplan.runtime.extras.kernels.model import predict_us
from topoplan.synth.ir.collective import Collective
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.planner.synthesize import synthesize
from topoplan.synth.request import Request
from topoplan.topo.graph import Device, Link, Topology, both_directions

# GB/s that NCCL counts for a slot of PCIe Gen3 x16, as that of a V100.
_GEN3_GBps = 12
_LIMIT_S = 20.0


@dataclass(frozen=True)
class Published:
    """Calls of a collective on a machine: KiB with microseconds of NCCL and of the authors' own.

    `gpus` on one PCIe switch can be planned for; 0 are other machines.
    """

    source: str
    machine: str
    collective: str
    calls: tuple[tuple[float, float, float], ...]
    gpus: int = 0


PUBLISHED = (
    Published(
        "sglang-V100#2",
        "4 V100, one PCIe switch",
        "allreduce",
        (
            *((4, 19.4, 4.0), (8, 20.3, 5.0), (16, 22.3, 7.2)),
            *((32, 24.2, 11.8), (128, 51.8, 44.5), (384, 83.5, 120.3)),
        ),
        gpus=4,
    ),
    Published(
        "vllm#50576",
        "8 A800, two islands",
        "allreduce",
        ((8, 57, 46), (16, 64, 45), (32, 96, 46), (128, 132, 67), (256, 169, 91), (512, 160, 143)),
    ),
    Published(
        "b12x#131",
        "16 RTX PRO 6000, four islands",
        "allreduce",
        ((14, 36.07, 18.16), (56, 36.45, 22.44), (112, 39.65, 26.03), (168, 39.34, 37.62)),
    ),
    Published(
        "flashinfer#5023", "4 GPUs, PCIe", "allgather", ((8, 13.61, 5.20), (16, 14.67, 5.30))
    ),
)


def predict(published: Published) -> list[float | None]:
    """Return the predicted microseconds of each call; None where the machine is not described."""
    if not published.gpus:
        return [None] * len(published.calls)
    names = [f"gpu{number}" for number in range(published.gpus)]
    devices = [*map(Device, names), Device("plx", "switch", family="pcie")]
    links = [
        link
        for name in names
        for link in both_directions(Link(name, "plx", Fraction(_GEN3_GBps), kind="pcie"))
    ]
    topology = Topology(published.machine, tuple(devices), tuple(links))
    collective = Collective(published.collective, published.gpus)
    plan = synthesize(Request(collective, topology, Effort(_LIMIT_S))).plan
    return [
        min(
            predict_us(entry.schedule, topology, round(KiB * 1024), mode)
            for entry in plan.entries
            for mode in ("pull", "push")
        )
        for KiB, _, _ in published.calls
    ]


def main() -> None:
    """Print the table."""
    args = make_parser(__doc__).parse_args()
    table = Table(
        [
            ("source", "source", "<16s"),
            ("machine", "machine", "<30s"),
            ("collective", "call", "<10s"),
            ("KiB", "KiB", ">5g"),
            ("nccl_us", "NCCL us", ">8.1f"),
            ("by_hand_us", "by hand", ">8.1f"),
            ("predicted_us", "predicted", ">9s"),
        ],
        as_json=args.json,
    )
    for each in PUBLISHED:
        for (KiB, nccl, by_hand), predicted in zip(each.calls, predict(each), strict=True):
            table.add(
                {
                    "source": each.source,
                    "machine": each.machine,
                    "collective": each.collective,
                    "KiB": KiB,
                    "nccl_us": nccl,
                    "by_hand_us": by_hand,
                    "predicted_us": "-" if predicted is None else f"{predicted:.1f}",
                }
            )
    table.end()


if __name__ == "__main__":
    main()
