"""Build the links between GPUs, and to an NVSwitch, from the reports of NVML and AMD's driver.

NVML reports NVLinks, AMD's driver xGMI links.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from itertools import permutations

from ..boards import find_board, find_datasheet_GBps, nvlink_generation
from ..facts import Facts, keys
from ..facts.keys import GPU, HOST, PCI, gpu_subject, nvlink_subject, pci_subject, xgmi_subject
from ..graph import Device, Link, both_directions
from ..grouping import group_by_key
from ..hardware import (
    LATENCY_us,
    NVLINK_DATASHEET_GBps,
    nvswitch_adding,
    xgmi_counted_GBps,
)
from ..notes import Note, Source, assumed
from .linux.gpus import find_gpu_vendor

# All NVSwitches of a machine count as one, since every GPU has equal links to each of them.
NVSWITCH = "nvswitch0"

SOURCE = "NVML: active NVLinks"
_UNKNOWN_END = "with an unknown other end; taken for an NVSwitch, as NCCL does"
_GENERATION_OF_VERSION = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5}  # nvmlNvlinkVersion_t


def join_nvlinks(
    facts: Facts, gpus: Mapping[str, str], cpu_of: Mapping[str, str]
) -> tuple[tuple[Device, ...], list[Link], list[Note]]:
    """Return the NVSwitch, if any, the links that NVML's facts describe, and notes on oddities.

    The links are NVLinks and NVLink-C2C, in both directions; all NVSwitches count as one device.
    `gpus` maps an NVML index to the GPU's device id, `cpu_of` a GPU's device id to that of its CPU.
    """
    counts: dict[str, Counter[str]] = {}
    notes: list[Note] = []
    at = {
        facts.get_text(gpu_subject(index), keys.GPU_BUS_ID): device
        for index, device in gpus.items()
    }
    hidden = _Hidden(facts, at.keys())
    for index, device in gpus.items():
        counts[device] = Counter()
        unplaced: Counter[str] = Counter()
        for link in list_active_links(facts, index):
            peer, oddity = _find_peer(facts, link, at, cpu_of.get(device), hidden)
            if peer is not None and peer != device:
                counts[device][peer] += 1
            if oddity:
                unplaced[oddity] += 1
        for oddity, n in unplaced.items():
            text = f"{device}: {n} active NVLink{'s' * (n > 1)} {oddity}"
            notes.append(
                Note(text)
                if (oddity == _UNKNOWN_END)
                else Note(text, "link-without-peer", (device,), "NVLink")
            )
    rates = {device: find_link_GBps(facts, index) for index, device in gpus.items()}
    notes += map(Note, _note_uneven(counts))
    pairs = dict.fromkeys(tuple(sorted((a, b))) for a, peers in counts.items() for b in peers)
    links: list[Link] = []
    for a, b in pairs:
        count = max(counts.get(a, Counter())[b], counts.get(b, Counter())[a])
        links += both_directions(
            Link(
                a,
                b,
                min(rates[x] for x in (a, b) if x in rates) * count,
                LATENCY_us["nvswitch" if NVSWITCH in (a, b) else "nvlink"],
                "nvlink",
                count,
                SOURCE,
            )
        )
    links += [
        x
        for index, device in gpus.items()
        for x in _join_c2c(facts, index, device, cpu_of.get(device))
    ]
    if not any(NVSWITCH in pair for pair in pairs):
        return (), links, notes
    generations = (
        _find_generation(facts, index) for index, device in gpus.items() if counts[device][NVSWITCH]
    )
    switch = Device(
        NVSWITCH,
        "switch",
        "nvswitch",
        source="NVML: remote ends of active NVLinks",
        in_network=nvswitch_adding(min(filter(None, generations), default=None)),
    )
    return (switch,), links, notes


def list_active_links(facts: Facts, index: str) -> list[str]:
    """Return the subjects of the facts about a GPU's active NVLinks, such as gpu/0/nvlink/3.

    `index` is the GPU's NVML index. The numbers of active links need not be contiguous.
    """
    return [
        fact.subject
        for fact in facts.items
        if fact.subject.startswith(nvlink_subject(index, ""))
        and fact.key == keys.NVLINK_STATE
        and fact.value == "active"
    ]


def find_link_GBps(facts: Facts, index: str) -> Fraction:
    """Return the datasheet rate of a single NVLink of a GPU, in GB/s in one direction.

    `index` is the GPU's NVML index. The name or the compute capability decides, else the version of
    the links; if all are unknown, the third generation is assumed.
    """
    subject = gpu_subject(index)
    known = {
        "name": facts.get_text(subject, keys.GPU_NAME),
        "sm": facts.get_number(subject, keys.GPU_SM),
    }
    return (
        find_datasheet_GBps("nvlink", known)
        or NVLINK_DATASHEET_GBps[_find_generation(facts, index) or 3]
    )


def _find_generation(facts: Facts, index: str) -> int | None:
    sm = facts.get_number(gpu_subject(index), keys.GPU_SM)
    if sm is not None:
        return nvlink_generation(sm)
    versions = (
        facts.get_number(link, keys.NVLINK_VERSION) for link in list_active_links(facts, index)
    )
    return next((_GENERATION_OF_VERSION[v] for v in versions if v in _GENERATION_OF_VERSION), None)


def _join_c2c(facts: Facts, index: str, device: str, cpu: str | None) -> tuple[Link, ...]:
    """Return the NVLink-C2C between a GPU and the CPU of its module.

    NVML has its rate. If it does not answer, as on GB10, the board's datasheet has.
    """
    subject = gpu_subject(index)
    count = facts.get_number(subject, keys.GPU_C2C_COUNT)
    rate_MBps = facts.get_number(subject, keys.GPU_C2C_MBps)
    rate, source = Fraction(rate_MBps or 0, 1000), Source("NVML: NVLink-C2C")
    board = find_board(facts.get_text(subject, keys.GPU_NAME) or "")
    if count is None and board is not None and board.c2c_GBps:
        count, rate, source = 1, board.c2c_GBps, assumed(f"NVLink-C2C of {board.name}")
    if not count or not rate or cpu is None:
        return ()
    return both_directions(Link(device, cpu, rate, LATENCY_us["c2c"], "c2c", count, source))


class _Hidden:
    """The addresses of GPUs that are no ranks since this process may not see or use them.

    GPUs on PCI that the driver does not list are among them: they are reported as such.
    """

    def __init__(self, facts: Facts, shown: Collection[str | None]) -> None:
        indices = facts.list_names(GPU)
        container = facts.get_text(HOST, keys.HOST_CONTAINER)
        # The driver does not tell the addresses of GPUs that it denies, nor, in a container, of
        # those that this was not given.
        self.any_denied = container not in (None, "no") or any(
            facts.get_text(gpu_subject(i), keys.GPU_DENIED) for i in indices
        )
        lost = {
            facts.get_text(gpu_subject(i), keys.GPU_BUS_ID)
            for i in indices
            if facts.get_text(gpu_subject(i), keys.GPU_LOST) is not None
        }
        listed = {facts.get_text(gpu_subject(i), keys.GPU_BUS_ID) for i in indices}
        on_pci = {bus_id for bus_id in facts.list_names(PCI) if find_gpu_vendor(facts, bus_id)}
        self.addresses = (listed | on_pci) - lost - {*shown}

    def __contains__(self, bus_id: str | None) -> bool:
        return self.any_denied or bus_id in self.addresses


def _find_peer(
    facts: Facts, link: str, at: Mapping[str | None, str], cpu: str | None, hidden: _Hidden
) -> tuple[str | None, str | None]:
    """Return the device at the other end of a link, and a note if that end is unusual.

    The device is None if it is not listed; the note is None if nothing is unusual.
    """
    bus_id, kind = (
        facts.get_text(link, keys.NVLINK_REMOTE_BUS_ID),
        facts.get_text(link, keys.NVLINK_REMOTE_KIND),
    )
    if bus_id in at and bus_id is not None:
        return at[bus_id], None
    if kind == "switch" or str(facts.get_text(pci_subject(bus_id), keys.PCI_CLASS)).startswith(
        "0x0680"
    ):
        return NVSWITCH, None
    if kind == "cpu":
        return cpu, None
    if kind == "gpu":
        return None, None if bus_id in hidden else f"to {bus_id}, a GPU that is not listed here"
    return NVSWITCH, _UNKNOWN_END


def _note_uneven(counts: Mapping[str, Counter[str]]) -> Iterator[str]:
    """Yield notes on unequal numbers of NVLinks.

    These are ends that report different numbers, and GPUs with fewer links than their peers.
    """
    for a, peers in counts.items():
        for b, count in peers.items():
            back = counts[b][a] if b in counts else count
            # a pair is noted once: by its first GPU, or by the only one that reports links
            if back != count and (a < b or not back):
                yield f"{a} reports {count} active NVLinks to {b}, which reports {back} back"
    groups = group_by_key((peers.total(), device) for device, peers in counts.items())
    most = max(groups, key=lambda total: (len(groups[total]), total), default=0)
    for total, devices in sorted(groups.items()):
        if total < most:
            yield (
                f"{', '.join(devices)}: {total} active NVLinks, where {len(groups[most])} others "
                f"have {most}"
            )


def join_xgmi(facts: Facts, gpus: Mapping[str, str]) -> tuple[Link, ...]:
    """Return a link for each direction that AMD's driver reports.

    `gpus` maps the index of a GPU in the facts to its device id.
    """
    links: list[Link] = []
    for (index, device), (other, peer) in permutations(gpus.items(), 2):
        subject = xgmi_subject(index, other)
        count = facts.get_number(subject, keys.XGMI_COUNT)
        if not count:
            continue
        speed_MBps = facts.get_number(subject, keys.XGMI_SPEED_MBps)
        if speed_MBps:
            rate, source = Fraction(speed_MBps, 1000), facts.get_source(subject, keys.XGMI_COUNT)
        else:
            rate = xgmi_counted_GBps(facts.get_text(gpu_subject(index), keys.GPU_GCN) or "")
            source = Source("AMD's driver; rate as RCCL counts it", "counted", "RCCL")
        links.append(Link(device, peer, rate * count, LATENCY_us["xgmi"], "xgmi", count, source))
    return tuple(links)
