"""Which files of topoplan one allreduce of DDP passes, once its schedule is settled.

    torchrun --nproc-per-node 2 benchmarks/call_path.py [--backend]

Prints the files in the order in which rank 0 enters them, from the hook's call (with --backend from
the process group's) to the result, on whatever thread; more than 10 are an exit code of 1.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from harness import make_parser
from torch.nn.parallel import DistributedDataParallel

import topoplan

ROOT = Path(topoplan.__file__).parent
ROOMS = ("topo", "synth", "runtime")
LIMIT, _WARMUP = 10, 12


def main() -> int:
    """Take steps until all is settled, then follow one."""
    parser = make_parser(__doc__)
    parser.add_argument("--backend", action="store_true", help="follow the backend, not the hook")
    args = parser.parse_args()
    world = int(os.environ["WORLD_SIZE"])
    plan = topoplan.synthesize("allreduce", f"ring:{world}", "ring")
    passed: dict[str, None] = {}
    follows = False

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if follows and event == "call" and ROOT in path.parents:
            file = path.relative_to(ROOT)
            if file.parts[0] in ROOMS:
                passed[file.as_posix()] = None

    threading.setprofile(note)  # of threads that begin from now on
    if args.backend:
        options = topoplan.backend_options(plans=f"ring:{world}", choose="plan", least_bytes=0)
        dist.init_process_group("topo", pg_options=options)
    else:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    if not args.backend:
        hook = topoplan.ddp_hook(plan, choose="plan", executor="point-to-point")
        model.register_comm_hook(None, hook)

    def step() -> None:
        model(torch.ones(4, 64)).sum().backward()

    for _ in range(_WARMUP):
        step()
    sys.setprofile(note)
    follows = True
    step()
    follows = False
    sys.setprofile(None)
    dist.barrier()
    if dist.get_rank() == 0:
        print("\n".join(passed), f"{len(passed)} files; at most {LIMIT}", sep="\n")
    dist.destroy_process_group()
    return 1 if len(passed) > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
