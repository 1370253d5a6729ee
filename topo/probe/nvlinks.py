"""NVLinks as NVML reports them, joined to links between GPUs and to an NVSwitch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from ..facts import Facts
from ..graph import Device, Link, both_ways
from ..hardware import LATENCY_us, NVLINK_DATASHEET_GBps

NVSWITCH = "nvswitch0"
"""All NVSwitches of a machine count as one, since every GPU is joined to each of them alike."""

SOURCE = "NVML: active NVLinks"
_SM86_GBps = Fraction(225, 16)  # RTX A6000 datasheet: 112.5 GB/s over 4 links, both directions together
_GENERATION_OF_SM = ((100, 5), (90, 4), (80, 3), (70, 2), (60, 1))
_GENERATION_OF_VERSION = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5}  # nvmlNvlinkVersion_t


@dataclass(frozen=True)
class NvLinks:
    """What the NVLinks come to: further devices, links, and what is odd about them."""

    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    notes: tuple[str, ...] = ()


def join_nvlinks(facts: Facts, gpus: Mapping[str, str], cpu_of: Mapping[str, str]) -> NvLinks:
    """Links from NVML's facts. `gpus` gives the device id of each NVML index, `cpu_of` its CPU's."""
    counts: dict[str, Counter[str]] = {}
    notes: list[str] = []
    at = {facts.text(f"gpu/{index}", "bus_id"): device for index, device in gpus.items()}
    for index, device in gpus.items():
        counts[device] = Counter()
        unplaced: Counter[str] = Counter()
        for link in active_links(facts, index):
            peer, odd = _peer(facts, link, at, cpu_of.get(device))
            if peer is not None and peer != device:
                counts[device][peer] += 1
            if odd:
                unplaced[odd] += 1
        notes += [f"{device}: {n} active NVLink{'s' * (n > 1)} {odd}" for odd, n in unplaced.items()]
    rates = {device: link_GBps(facts, index) for index, device in gpus.items()}
    notes += _uneven(counts)
    pairs = dict.fromkeys(tuple(sorted((a, b))) for a, peers in counts.items() for b in peers)
    links: list[Link] = []
    for a, b in pairs:
        count = max(counts.get(a, Counter())[b], counts.get(b, Counter())[a])
        rate = min(rates[x] for x in (a, b) if x in rates)
        latency = LATENCY_us["nvswitch" if NVSWITCH in (a, b) else "nvlink"]
        links += both_ways(Link(a, b, rate * count, latency, "nvlink", count, SOURCE))
    links += [x for index, device in gpus.items() for x in _c2c(facts, index, device, cpu_of.get(device))]
    has_switch = any(NVSWITCH in pair for pair in pairs)
    switch = Device(NVSWITCH, "switch", "nvswitch", source="NVML: remote ends of active NVLinks")
    return NvLinks((switch,) if has_switch else (), tuple(links), tuple(notes))


def active_links(facts: Facts, index: str) -> Iterator[str]:
    """Subjects of the active NVLinks of a GPU; their numbers need not be contiguous."""
    prefix = f"gpu/{index}/nvlink/"
    for fact in facts.items:
        if fact.subject.startswith(prefix) and fact.key == "state" and fact.value == "active":
            yield fact.subject


def link_GBps(facts: Facts, index: str) -> Fraction:
    """Datasheet rate of one NVLink of a GPU in one direction: by compute capability, else by the version of a link."""
    sm = facts.number(f"gpu/{index}", "sm")
    if sm == 86:
        return _SM86_GBps
    generation = None if sm is None else next((g for least, g in _GENERATION_OF_SM if sm >= least), 1)
    if generation is None:
        versions = (facts.number(link, "version") for link in active_links(facts, index))
        generation = next((_GENERATION_OF_VERSION[v] for v in versions if v in _GENERATION_OF_VERSION), 3)
    return NVLINK_DATASHEET_GBps[generation]


def _c2c(facts: Facts, index: str, device: str, cpu: str | None) -> tuple[Link, ...]:
    """NVLink-C2C to the GPU's own CPU (Grace)."""
    count, rate_MBps = (facts.number(f"gpu/{index}", key) for key in ("c2c_count", "c2c_MBps"))
    if not count or not rate_MBps or cpu is None:
        return ()
    rate = Fraction(rate_MBps, 1000)
    return both_ways(Link(device, cpu, rate, LATENCY_us["c2c"], "c2c", count, "NVML: NVLink-C2C"))


def _peer(facts: Facts, link: str, at: Mapping[str | None, str], cpu: str | None) -> tuple[str | None, str | None]:
    """The device at the other end of a link (None: none that is listed), and what is odd about it."""
    bus_id, kind = facts.text(link, "remote_bus_id"), facts.text(link, "remote_kind")
    if bus_id in at and bus_id is not None:
        return at[bus_id], None
    if kind == "switch" or str(facts.text(f"pci/{bus_id}", "class")).startswith("0x0680"):
        return NVSWITCH, None
    if kind == "cpu":
        return cpu, None
    if kind == "gpu":
        return None, f"to {bus_id}, a GPU that is not listed here"
    return NVSWITCH, "with an unknown other end; taken for an NVSwitch, as NCCL does"


def _uneven(counts: Mapping[str, Counter[str]]) -> Iterator[str]:
    """What does not match: two ends that disagree, and a GPU with fewer links than its peers."""
    for a, peers in counts.items():
        for b, count in peers.items():
            if b in counts and a < b and counts[b][a] != count:
                yield f"{a} reports {count} active NVLinks to {b}, which reports {counts[b][a]} back"
            if b in counts and a > b and not counts[b][a]:
                yield f"{a} reports {count} active NVLinks to {b}, which reports 0 back"
    groups: dict[int, list[str]] = defaultdict(list)
    for device, peers in counts.items():
        groups[peers.total()].append(device)
    most = max(groups, key=lambda total: (len(groups[total]), total), default=0)
    for total, devices in sorted(groups.items()):
        if total < most:
            yield f"{', '.join(devices)}: {total} active NVLinks, where {len(groups[most])} others have {most}"
