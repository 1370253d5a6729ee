"""`nvidia-smi nvlink -R` and `-s`: which bus address each NVLink of a GPU ends at, and which links are up, with their rate.

Neither says at which address a GPU itself is. nvidia-smi numbers GPUs in the order of their addresses, so the remote
addresses, sorted, are those of the GPUs that have links, as long as there are as many and all links then have an end on
both sides. Otherwise they are taken for NVSwitches, as NCCL takes what it does not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from ...errors import InputError
from ...facts import Fact
from ...graph import Device, Link, both_ways
from ...hardware import LATENCY_us, NVLINK_DATASHEET_GBps
from .cells import listed
from .other_links import NVLINK_SOURCE, NVLINK_GBps
from .parser import LinkTable, Parts

STATUS, REMOTE = "nvidia-smi nvlink -s", "nvidia-smi nvlink -R"
_NEAR = Fraction(7, 100)  # what -s prints is the raw rate: 26.562 for the 25 GB/s of the datasheet


def peers(tables: Mapping[int, LinkTable]) -> dict[str, int] | None:
    """The GPU at each remote address; None where the addresses are not those of the GPUs, so NVSwitches'."""
    linked = sorted(gpu for gpu, table in tables.items() if table.remote)
    addresses = sorted({address for table in tables.values() for address in table.remote.values()})
    if len(linked) != len(addresses):
        return None
    at = dict(zip(addresses, linked, strict=True))
    ends = {gpu: Counter(at[address] for address in tables[gpu].remote.values()) for gpu in linked}
    fits = all(ends[a][b] == ends[b][a] for a in linked for b in ends[a]) and all(not ends[a][a] for a in linked)
    return at if fits else None


def lane(tables: Mapping[int, LinkTable]) -> tuple[Fraction, str]:
    """GB/s of one NVLink in one direction, and the source: the slowest that -s reports, at its datasheet's rate."""
    told = {speed for table in tables.values() for speed in table.speed.values() if speed and float(speed) > 0}
    if not told:
        return NVLINK_GBps, NVLINK_SOURCE
    slowest = min(told, key=Fraction)
    raw = Fraction(slowest)
    near = next((rate for rate in set(NVLINK_DATASHEET_GBps.values()) if abs(raw - rate) <= _NEAR * rate), raw)
    return near, f"{STATUS}: {slowest} GB/s a link" + ("" if near == raw else f", {float(near):g} by the datasheet")


def join_links(found: Parts, where: str, notes: list[str]) -> tuple[list[Device], list[Link]]:
    """GPUs and their NVLinks from -R, where there is no matrix. Raises InputError where no link has a known end."""
    tables = found.link_tables
    if not any(table.remote for table in tables.values()):
        raise InputError(
            f"{where}: nvidia-smi nvlink -s says which NVLinks are up, not where they end; "
            "add the output of nvidia-smi topo -m or of nvidia-smi nvlink -R to the file"
        )
    at = peers(tables)
    address = {gpu: bus for bus, gpu in (at or {}).items()}
    devices = [
        Device(f"gpu{gpu}", bus_id=address.get(gpu), source=REMOTE, extra=_known(table))
        for gpu, table in sorted(tables.items())
    ]
    rate, source = lane(tables)
    links: list[Link] = []
    for gpu, table in sorted(tables.items()):
        ends = Counter("nvswitch0" if at is None else f"gpu{at[bus]}" for bus in table.remote.values())
        for end, number in ends.items():
            us = LATENCY_us["nvswitch" if at is None else "nvlink"]
            link = Link(f"gpu{gpu}", end, rate * number, us, "nvlink", number, source)
            if at is None or link.src < link.dst:
                links += both_ways(link)
    if at is None:
        devices.append(Device("nvswitch0", "switch", "nvswitch", source=REMOTE))
        notes.append("the remote ends are not the GPUs listed; taken for NVSwitches, as NCCL does")
    else:
        notes.append("GPUs are numbered in the order of their bus addresses: so the remote ends are told apart")
    notes += _unlike(tables)
    notes.append("PCIe, CPUs and NICs are not told; nvidia-smi topo -m says more")
    return devices, links


def _known(table: LinkTable) -> dict[str, str]:
    return {key: text for key, text in (("name", table.name), ("uuid", table.uuid)) if text}


def _unlike(tables: Mapping[int, LinkTable]) -> list[str]:
    """GPUs whose active links by -s are not as many as -R lists."""
    odd = [
        f"gpu{gpu} ({sum(map(bool, table.speed.values()))} and {len(table.remote)})"
        for gpu, table in sorted(tables.items())
        if table.speed and table.remote and sum(map(bool, table.speed.values())) != len(table.remote)
    ]
    return [f"active links by -s and ends by -R differ in number: {listed(odd)}"] if odd else []


def link_facts(tables: Mapping[int, LinkTable]) -> list[Fact]:
    """What the two outputs say of GPUs and their links."""
    facts: list[Fact] = []
    at = peers(tables)
    kind = "switch" if at is None else "gpu"
    address = {gpu: bus for bus, gpu in (at or {}).items()}
    for gpu, table in sorted(tables.items()):
        source = REMOTE if table.remote else STATUS
        facts += [Fact(f"gpu/{gpu}", key, text, source) for key, text in _known(table).items()]
        if gpu in address:
            facts.append(Fact(f"gpu/{gpu}", "bus_id", address[gpu], f"{REMOTE}, by the order of the GPUs"))
        for number, speed in sorted(table.speed.items()):
            subject = f"gpu/{gpu}/nvlink/{number}"
            facts.append(Fact(subject, "state", "active" if speed else "inactive", STATUS))
            if speed:
                facts.append(Fact(subject, "speed_MBps", int(Fraction(speed) * 1000), STATUS))
        for number, bus in zip(_numbers(table), table.remote.values(), strict=True):
            subject = f"gpu/{gpu}/nvlink/{number}"
            facts += [Fact(subject, "remote_bus_id", bus, REMOTE), Fact(subject, "remote_kind", kind, REMOTE)]
            if not table.speed:
                facts.append(Fact(subject, "state", "active", REMOTE))
    return facts


def _numbers(table: LinkTable) -> list[int]:
    """Numbers of the links of -R, which counts the active ones only; where -s is there too and agrees, its numbers."""
    active = sorted(number for number, speed in table.speed.items() if speed)
    return active if len(active) == len(table.remote) else list(table.remote)
