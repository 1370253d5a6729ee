"""Predict the time of calls by one-sided kernels, and list the schedules worth trying per machine.

In these the ranks read or write each other's memory themselves, without messages. A call costs its
launch, the rounds of its steps one after the other, and in each step the time of the most loaded
link. A round takes three times a hop between two GPUs. Pull (the receiver reads): the flag crosses,
then the request of a read, then the data. Push (the sender writes): the data cross, their receipt
returns to the sender's fence, then the flag crosses.

Pushes to several GPUs over PCIe are staged, since writes from all to all collapse there
(flashinfer#4393): each rank has one stream out and one in at a time, and a round for each. A
schedule that is not staged is priced as if it were.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....synth.cost.loads import step_loads
from ....synth.ir.schedule import Schedule
from ....topo.graph import Topology
from ..one_sided.flat import stage
from ..one_sided.instructions import Mode

# Microseconds of a launch: what NCCL counts for a call with its fastest protocol, LL, on a ring.
LAUNCH_us: Final = 6.6
# Microseconds in which data and a flag reach another GPU, over NVLink and otherwise: what NCCL's
# tuner counts for a hop with LL (graph/tuning.cc). On machines with several sockets it is often
# more.
NVLINK_HOP_us: Final = 0.6
PCI_HOP_us: Final = 1.0
_HOPS_PER_ROUND: Final = 3
# Links that GPUs write and read each other's memory over like NVLink.
_FABRICS: Final = frozenset({"nvlink", "xgmi"})
# Microseconds in which a link of 1 GB/s transfers a byte.
_us_PER_BYTE: Final = 1e-3


def predict_us(
    schedule: Schedule,
    topology: Topology,
    size_bytes: int,
    mode: Mode = "pull",
    pci_hop_us: float = PCI_HOP_us,
) -> float:
    """Return the predicted microseconds of a call by kernels for a buffer of `size_bytes`.

    `mode` says whether receivers "pull" or senders "push" data; `pci_hop_us` is the latency of a
    hop over PCIe.
    """
    uncut = schedule.uncut
    steps = int(uncut.transfers.step.max(initial=-1)) + 1
    loads = step_loads(uncut.chunks, uncut.transfers, steps, topology)
    data_s_per_GB = (
        float(loads.seconds.max(axis=1, initial=0).sum()) / loads.scale if steps else 0.0
    )
    rounds_us = _count_rounds_us(uncut, topology, mode, pci_hop_us)
    return LAUNCH_us + rounds_us + data_s_per_GB * size_bytes * _us_PER_BYTE


def _count_rounds_us(
    schedule: Schedule, topology: Topology, mode: Mode, pci_hop_us: float
) -> float:
    t = schedule.transfers
    paths, path_of = t.paths()
    over_pci = _find_pci_paths(schedule, topology)
    total_us = 0.0
    for step in np.unique(t.step):
        used = np.unique(path_of[t.step == step])
        pairs = [paths[path][:2] for path in used[over_pci[used]]]
        stages = _count_streams(pairs) if mode == "push" else int(bool(pairs))
        total_us += _HOPS_PER_ROUND * (stages * pci_hop_us if pairs else NVLINK_HOP_us)
    return total_us


def _find_pci_paths(schedule: Schedule, topology: Topology) -> NDArray[np.bool_]:
    """Return, for each of the schedule's paths, whether some link of it is not a fabric's."""
    kinds = {(link.src, link.dst): link.kind for link in topology.links}
    ranks = topology.ranks
    return np.array(
        [
            any(
                kinds.get(hop) not in _FABRICS for hop in pairwise((ranks[src], *route, ranks[dst]))
            )
            for src, dst, route in schedule.transfers.paths()[0]
        ],
        dtype=np.bool_,
    )


def _count_pci_steps(schedule: Schedule, topology: Topology) -> int:
    """Return in how many steps some rank has several messages out or in that cross PCIe."""
    t = schedule.uncut.transfers
    paths, path_of = t.paths()
    over_pci = _find_pci_paths(schedule, topology)
    crowded = 0
    for step in np.unique(t.step):
        used = np.unique(path_of[t.step == step])
        crowded += _count_streams([paths[path][:2] for path in used[over_pci[used]]]) > 1
    return crowded


def _count_streams(pairs: list[tuple[int, int]]) -> int:
    """Return the largest number of messages that leave or reach one rank."""
    ends = [[pair[end] for pair in pairs] for end in (0, 1)]
    return max((of_end.count(rank) for of_end in ends for rank in set(of_end)), default=0)


def list_shapes(schedules: Iterable[Schedule], topology: Topology) -> list[tuple[Schedule, Mode]]:
    """Return the (schedule, mode) pairs worth trying: pulled, and pushed (staged over PCIe)."""
    shapes: list[tuple[Schedule, Mode]] = []
    for schedule in schedules:
        shapes.append((schedule.uncut, "pull"))
        is_crowded = _count_pci_steps(schedule, topology) > 0
        pushed = stage(schedule, topology) if is_crowded else schedule
        if pushed is not None:
            shapes.append((pushed.uncut, "push"))
    return list(dict.fromkeys(shapes))


def rank_shapes(
    shapes: Sequence[tuple[Schedule, Mode]], topology: Topology, size_bytes: int
) -> list[tuple[Schedule, Mode]]:
    """Sort (schedule, mode) pairs by predicted time for a buffer of `size_bytes`, fastest first."""
    return sorted(shapes, key=lambda x: predict_us(x[0], topology, size_bytes, x[1]))
