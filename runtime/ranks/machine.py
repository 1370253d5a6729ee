"""Describe the machine that ranks run on: its links, if data crosses any, and the host costs."""

import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ...synth.cost.host_costs import OVER_NCCL, HostCosts, host_of
from ...synth.ir.schedule import Schedule
from ...topo.derived.stripes import list_forms
from ...topo.errors import InputError, PlanMismatchError
from ...topo.graph import Topology
from .launch import EMULATED

# The variable that names the host of a rank in place of its hostname.
HOST = "TOPOPLAN_HOST"


def name_host() -> str:
    """Return the name of this process's host, by which ranks on one host are found.

    The hosts of an emulated machine have names of their own.
    """
    return os.environ.get(HOST) or socket.gethostname()


def name_boot() -> str:
    """Return the boot id of this machine, "" if unknown.

    Unlike hostnames, those of different machines differ; all processes since one boot have the
    same.
    """
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


@dataclass(frozen=True)
class Machine:
    """The machine of a group's ranks, for predictions.

    `topology` is None if they share a host and communicate through its memory, or if the links are
    unknown; `host` has the costs of sending per message and byte, measured or usual ones, `batched`
    is set if messages go in batches (over NCCL), `what` names the machine in messages to users.
    """

    topology: Topology | None
    host: HostCosts
    batched: bool
    what: str


def emulated() -> Topology | None:
    """Return the emulated machine that this process runs in, or None outside of one.

    topo-emulate rebuilds a machine's links out of network namespaces. Raise InputError if the file
    that describes it is gone.
    """
    path = os.environ.get(EMULATED)
    if path is None:
        return None
    if not Path(path).is_file():
        raise InputError(
            f"{EMULATED} names {path}, which is not there; was it left over from an emulation "
            "that has ended?"
        )
    return Topology.load(path)


def describe_machine(
    topology: Topology | None,
    cores_of_hosts: Mapping[str, int],
    *,
    batched: bool,
    carrier: str = "",
    costs: HostCosts | None = None,
) -> Machine:
    """Return the machine of a group's ranks, for predictions.

    `topology` is the plan's, None for unknown links. `cores_of_hosts` has the number of usable
    cores by host name; `batched` says that messages go in batches (over NCCL). `carrier` names what
    carries messages if that is not torch's backend, and `costs` are its costs if nothing was
    measured.
    """
    cores, over = sum(cores_of_hosts.values()), f", over {carrier}" if carrier else ""
    known = (host_of(topology) if topology is not None else None) or costs
    emulated_machine = emulated()
    if emulated_machine is not None:
        # As drawn if the plan names all of its links, else with equal switches merged.
        forms = list_forms(emulated_machine)
        named = {} if topology is None else topology.capacity_GBps
        fitting = (form for form in forms if form.capacity_GBps.keys() <= named.keys())
        emulated_machine = next(fitting, forms[-1])
        built = host_of(emulated_machine) or HostCosts()
        host = replace(known or built, burst_bytes=built.burst_bytes, wire=built.wire, cores=cores)
        return Machine(emulated_machine, host, batched, f"emulated{over}")
    host = replace(known or (OVER_NCCL if batched else HostCosts()), cores=cores)
    if batched or topology is None or len(cores_of_hosts) > 1:
        return Machine(topology, host, batched, f"as in the topology{over}")
    return Machine(None, host, False, f"one host's memory{over}")


def check_links(schedules: Iterable[Schedule], planned: Topology, machine: Machine) -> None:
    """Raise PlanMismatchError if schedules use links or ranks that the emulated machine lacks.

    They were planned on the topology `planned`, which is the machine's own unless one is emulated.
    """
    there = machine.topology
    if there is None or there is planned:
        return
    for schedule in schedules:
        for src, dst, route in schedule.transfers.paths()[0]:
            if max(src, dst) >= len(there.ranks):
                raise _lacks(there, planned, f"rank {max(src, dst)}")
            hops = pairwise((there.ranks[src], *route, there.ranks[dst]))
            lacking = next((hop for hop in hops if hop not in there.latency_us), None)
            if lacking is not None:
                raise _lacks(there, planned, f"link {' -> '.join(lacking)}")


def _lacks(emulated_machine: Topology, planned: Topology, what: str) -> PlanMismatchError:
    name = emulated_machine.name
    error = PlanMismatchError(
        f"the plan is for {planned.name}, and the emulated machine {name} has no {what}; expected "
        f"a plan for the machine that is emulated: make one for {name}, or emulate {planned.name}"
    )
    error.is_common = True
    return error


def find_own_cores() -> tuple[str, frozenset[int]]:
    """Return the name of this rank's host, and the numbers of the cores it may use there.

    The hosts of an emulated machine, which is made of network namespaces, share this host's cores,
    so they count as one.
    """
    cores = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    return os.environ.get(EMULATED) or name_host(), frozenset(cores)


def count_cores(ranks: Iterable[tuple[str, frozenset[int]]]) -> dict[str, int]:
    """Return, by host name, the number of cores that the ranks on the host may use together.

    `ranks` has each rank's host name and core numbers: launchers bind ranks to different cores.
    """
    of_hosts: dict[str, set[int]] = {}
    for host, cores in ranks:
        of_hosts.setdefault(host, set()).update(cores)
    return {host: len(cores) for host, cores in of_hosts.items()}


def are_crowded(ranks: Sequence[tuple[str, frozenset[int]]]) -> bool:
    """Return whether a host has more ranks than cores that they may use.

    `ranks` has each rank's host name and the numbers of its cores.
    """
    cores = count_cores(ranks)
    return any(number > cores[host] for host, number in Counter(host for host, _ in ranks).items())
