"""Probe this machine, synthesize a plan, run it and train with it: python examples/demo.py (`make
demo`).
"""

import os
import subprocess
import sys
from pathlib import Path

from topoplan.runtime.extras.emulate import why_not

ROOT = Path(__file__).resolve().parent.parent
PLAN = "demo-out/dgx1-allreduce.json"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "8"]
END = """
Shown: a machine as topoplan reads it, a plan for a DGX-1 with the proof of how good it is, eight
processes that run it and check every element, and a training script that uses it with one line.
Next, on your own machine:

  topo-probe --check                                                its parts and their problems
  topo-synth allreduce local -o plan.json   a plan for it
  topo-run plan.json                                                plan and stock, size by size
  topo-judge --topology local nccl.log                              what stock NCCL leaves unused

README.md goes on from here. The plan of this demo is {plan}.
"""


def step(title: str, shown: str, command: list[str]) -> None:
    """Say what is run, run it, and stop the demo where it fails."""
    print(f"\n\033[1m{title}\033[0m\n$ {shown}\n", flush=True)
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        cwd=ROOT,
        env={"OMP_NUM_THREADS": "1", **os.environ},
    )
    if done.returncode:
        sys.exit(f"the demo stopped: `{shown}` ended with exit code {done.returncode}")


def main() -> None:
    """Run the steps in order."""
    (ROOT / PLAN).parent.mkdir(exist_ok=True)
    step("1. What is this machine?", "topo-probe", ["-m", "topoplan.cli.probe"])
    step(
        "2. A hybrid cube mesh (DGX-1): steps against rounds, the ends of the front proved",
        "topo-synth allgather dgx1 --pareto",
        ["-m", "topoplan.cli.synth", "allgather", "dgx1", "--pareto"],
    )
    step(
        "3. The allreduce to use at each size, and how far it is from the bound",
        f"topo-synth allreduce dgx1 -o {PLAN} --force",
        ["-m", "topoplan.cli.synth", "allreduce", "dgx1", "-o", PLAN, "--force"],
    )
    step(
        "4. Eight processes carry it out; every element is checked",
        f"topo-run {PLAN} -b 4K -e 4M -f 32 -n 5",
        ["-m", "topoplan.cli.run", PLAN, "-b", "4K", "-e", "4M", "-f", "32", "-n", "5"],
    )
    reason = why_not()
    if reason is None:
        step(
            "5. The same on a DGX-1 rebuilt out of network namespaces: real links, at 50 Mbit/s "
            "each",
            f"topo-emulate dgx1 --slowest 50Mbit -- topo-run {PLAN} -b 64K -e 1M -f 16 -n 3 -w 1",
            [
                "-m",
                "topoplan.cli.extras.emulate",
                "dgx1",
                "--slowest",
                "50Mbit",
                "--",
                sys.executable,
                "-m",
                "topoplan.cli.run",
                PLAN,
                "-b",
                "64K",
                "-e",
                "1M",
                "-f",
                "16",
                "-n",
                "3",
                "-w",
                "1",
            ],
        )
    else:
        print(f"\n5. (left out: no machine can be emulated here: {reason})", flush=True)
    script = "examples/train_ddp.py"
    shown = "torchrun --standalone --nproc-per-node 8 examples/train_ddp.py"
    step("6. Training on handwritten digits, stock DDP", shown, [*TORCHRUN, script])
    step(
        "7. The same with one line more",
        f"{shown} --plan {PLAN}",
        [*TORCHRUN, script, "--plan", PLAN],
    )
    lab = ["--ranks", "4", "--epochs", "4", "--systems", "stock,plan,plan-int8"]
    if reason is None:
        title = (
            "8. What it is for: training over a slow network, two hosts with 100 Mbit/s between "
            "them"
        )
        lab = ["--network", "slow", *lab]
    else:
        title = (
            "8. Training over loopback, where all are about alike (no slow network can be made "
            f"here: {reason})"
        )
        lab = ["--network", "loopback", *lab]
    step(title, f"python -m examples.lab {' '.join(lab)}", ["-m", "examples.lab", *lab])
    print(END.format(plan=PLAN), flush=True)


if __name__ == "__main__":
    main()
