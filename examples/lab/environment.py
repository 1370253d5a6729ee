"""Describe the machine and versions behind a report, without names of hosts, users or folders."""

import os
import platform
import subprocess
from collections import Counter
from pathlib import Path

import torch

import topoplan
from topoplan import Topology

from .networks import Site

_SOURCES = Path(__file__).resolve().parents[2]


def describe_environment(sites: list[Site]) -> dict[str, str]:
    """Return the names and values of this machine's properties and versions, in display order.

    Those of the sites' networks are among them.
    """
    topology = topoplan.probe()
    lines: dict[str, str | None] = {
        "processor": _describe_processor(topology),
        "memory": _describe_memory(),
        "GPUs": _describe_gpus(topology),
        "links of this machine": _describe_links(topology),
        **{f"network {site.network}, {site.ranks} ranks": site.links for site in sites},
        "CUDA, NCCL": _describe_cuda(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "topoplan": ", commit ".join(filter(None, (topoplan.__version__, _find_commit()))),
    }
    return {key: value for key, value in lines.items() if value is not None}


def _describe_processor(topology: Topology) -> str:
    names = {
        str(device.extra["name"])
        for device in topology.devices
        if device.kind == "cpu" and device.extra.get("name")
    }
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{', '.join(sorted(names)) or platform.processor() or 'unknown'}, "
        f"{cores} cores for this process"
    )


def _describe_memory() -> str | None:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"
    except (ValueError, OSError):  # sysconf does not know these names on every system
        return None


def _describe_gpus(topology: Topology) -> str:
    names = Counter(
        str(topology.by_id[gpu].extra.get("name") or "unknown") for gpu in topology.ranks
    )
    return (
        ", ".join(f"{times} x {name}" for name, times in names.items())
        or "none; training is on the processor"
    )


def _describe_links(topology: Topology) -> str | None:
    kinds = Counter(link.kind for link in topology.links if link.kind)
    # A topology lists both directions of a link, which a reader counts as one.
    counts = ((kind, times // 2 or times) for kind, times in sorted(kinds.items()))
    return ", ".join(f"{n} {kind} link{'' if n == 1 else 's'}" for kind, n in counts) or None


def _describe_cuda() -> str | None:
    if not torch.cuda.is_available():
        return None
    nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return f"{torch.version.cuda}, {'.'.join(map(str, nccl))}"


def _find_commit() -> str | None:
    """Return the commit of the checkout, None if the sources are not one."""
    if not (_SOURCES / ".git").exists():
        return None
    # Without tags (--exclude), so that the commit itself is printed.
    options = ["--always", "--dirty=, with changes", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(
            ["git", "-C", _SOURCES, "describe", *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
