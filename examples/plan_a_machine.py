"""Plan an allreduce for a machine that is known by a text, and save the plan. No GPU is needed, and
no torch.

nvidia-smi topo -m > matrix.txt                     on the machine
python examples/plan_a_machine.py matrix.txt        anywhere; without a file: a box with four GPUs
"""

import sys
import tempfile
from pathlib import Path

import topoplan

MATRIX = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      NV12    SYS     SYS     0-23            0
GPU1    NV12     X      SYS     SYS     0-23            0
GPU2    SYS     SYS      X      NV12    24-47           1
GPU3    SYS     SYS     NV12     X      24-47           1
"""
PLAN = "plan.json"


def main() -> None:
    """Read the machine, plan for it, and save what was planned."""
    if len(sys.argv) > 1:
        machine = topoplan.load(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "matrix.txt"
            text.write_text(MATRIX, encoding="utf-8")
            machine = topoplan.load(text)
    print(machine.describe())
    for link in machine.links:
        if link.kind == "nvlink":
            print(
                f"{link.src} -> {link.dst}: {link.count} NVLinks, {float(link.bandwidth_GBps):g} "
                "GB/s"
            )

    plan = topoplan.synthesize("allreduce", machine)
    print(plan.describe("64M"))
    plan.save(PLAN, overwrite=True)

    again = topoplan.Plan.load(PLAN)  # verified when it is written, and when it is read
    entry = again.entry_for(64 << 20)
    gap = float(again.gap_of(entry))
    print(
        f"{PLAN}: {again}; at 64 MiB {entry.schedule.label}, {gap:.1%} from what its links can do "
        "at best"
    )


if __name__ == "__main__":
    try:
        main()
    except topoplan.TopoplanError as error:  # one line that says what, where and what to do
        sys.exit(str(error))
