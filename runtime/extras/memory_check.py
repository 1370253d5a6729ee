"""Check that the buffers of a benchmark fit into memory before any are allocated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ...synth.sizes import show_size
from ...topo.errors import InputError
from ..program.layout import ends_numel, ends_with_result

if TYPE_CHECKING:
    from ...synth.ir.collective import Collective
    from ..measuring.bench_options import BenchOptions

# Numbers of 8 bytes per element of a result that its check holds at once: the expected value, its
# error, and the intermediate results of computing them. A reduction has two more.
_CHECKED, _CHECKED_REDUCTION = 3, 5
_MEMINFO = Path("/proc/meminfo")
# Limit and use of a container's memory in bytes, of cgroups version 2 and 1.
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def check_memory(options: BenchOptions, collective: Collective, ranks: int, on_gpus: bool) -> None:
    """Raise InputError if the buffers for the largest size cannot fit into memory.

    `ranks` is the number of the collective's ranks on this host; with `on_gpus` they are allocated
    on GPUs, else in the host's memory.
    """
    available = _read_gpu_bytes() if on_gpus else _read_available_bytes()
    size = options.list_sizes()[-1]
    needed = [_count_bytes(options, collective, rank, size) for rank in range(collective.ranks)]
    # With some ranks elsewhere, those that need the least may be the ones here.
    least = max(needed) if on_gpus else sum(sorted(needed)[:ranks])
    if available is not None and least > available:
        where = "each GPU" if on_gpus else f"this host, for {ranks} ranks"
        raise InputError(
            f"a size of {show_size(size)} needs at least {show_size(least)} of memory on {where}; "
            f"there are {show_size(available)}: choose a smaller largest size",
            parameter="max_bytes",
        )


def _count_bytes(options: BenchOptions, collective: Collective, rank: int, size: int) -> int:
    """Return a lower bound of the bytes that a rank's buffers and the check of them take."""
    itemsize = max(1, int(re.sub(r"\D", "", options.dtype)) // 8)
    sent, got = ends_numel(collective, rank, size // itemsize)
    checked = 0
    if ends_with_result(collective, rank):
        checked = _CHECKED_REDUCTION * (size // itemsize) if collective.reduces else _CHECKED * got
    return (sent + got) * itemsize + 8 * checked


def _read_available_bytes() -> int | None:
    """Return the memory and swap that processes may still take, in bytes; None if unknown."""
    figures = []
    try:
        text = _MEMINFO.read_text(encoding="ascii")
        kib = dict(re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE))
        figures.append((int(kib["MemAvailable"]) + int(kib.get("SwapFree", 0))) * 1024)
    except (OSError, KeyError, ValueError):
        return None
    for limit, use in _CGROUPS:
        try:
            figures.append(int(Path(limit).read_text()) - int(Path(use).read_text()))
        except (OSError, ValueError):  # no such cgroup, or "max": no limit
            continue
    return max(0, min(figures))


def _read_gpu_bytes() -> int | None:
    """Return the memory of the smallest GPU of this process, in bytes."""
    import torch

    count = torch.cuda.device_count()
    sizes = (torch.cuda.get_device_properties(i).total_memory for i in range(count))
    return min(sizes, default=None)
