"""Read `nvidia-smi nvlink -R` and `-s`: the bus address at the end of each NVLink, and which links
are up at which rate.

Neither says at which address a GPU itself is. nvidia-smi numbers GPUs in the order of their
addresses, so the remote addresses, sorted, are those of the GPUs that have links, as long as there
are as many and all links then have an end on both sides. Otherwise they are taken for NVSwitches,
as NCCL takes what it does not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from ...errors import InputError
from ...facts import Fact, keys
from ...facts.keys import gpu_subject, nvlink_subject
from ...graph import Device, Link, both_ways
from ...hardware import LATENCY_us, NVLINK_DATASHEET_GBps, nvswitch_adding
from .cells import list_some
from .other_links import NVLINK_SOURCE, NVLINK_GBps
from .parser import NvlinkListing, SmiOutput

STATUS, REMOTE = "nvidia-smi nvlink -s", "nvidia-smi nvlink -R"
_NEAR = Fraction(7, 100)  # what -s prints is the raw rate: 26.562 for the 25 GB/s of the datasheet


def match_peers(listings: Mapping[int, NvlinkListing]) -> dict[str, int] | None:
    """Return the GPU at each remote address; None where the addresses are not those of the GPUs, so
    NVSwitches'.
    """
    linked = sorted(gpu for gpu, listing in listings.items() if listing.remote)
    addresses = sorted(
        {address for listing in listings.values() for address in listing.remote.values()}
    )
    if len(linked) != len(addresses):
        return None
    gpu_at = dict(zip(addresses, linked, strict=True))
    ends = {
        gpu: Counter(gpu_at[address] for address in listings[gpu].remote.values()) for gpu in linked
    }
    fits = all(ends[a][b] == ends[b][a] for a in linked for b in ends[a]) and all(
        not ends[a][a] for a in linked
    )
    return gpu_at if fits else None


def choose_lane_rate(listings: Mapping[int, NvlinkListing]) -> tuple[Fraction, str]:
    """Return GB/s of one NVLink in one direction and the source: the slowest that -s reports, at
    its datasheet's rate.
    """
    reported = {
        speed
        for listing in listings.values()
        for speed in listing.speed.values()
        if speed and float(speed) > 0
    }
    if not reported:
        return NVLINK_GBps, NVLINK_SOURCE
    slowest = min(reported, key=Fraction)
    raw = Fraction(slowest)
    near = next(
        (rate for rate in set(NVLINK_DATASHEET_GBps.values()) if abs(raw - rate) <= _NEAR * rate),
        raw,
    )
    return near, f"{STATUS}: {slowest} GB/s a link" + (
        "" if near == raw else f", {float(near):g} by the datasheet"
    )


def join_nvlinks(
    output: SmiOutput, where: str, notes: list[str]
) -> tuple[list[Device], list[Link]]:
    """Return GPUs and their NVLinks from -R, where there is no matrix. Raises InputError where no
    link has a known end.
    """
    listings = output.nvlinks_by_gpu
    if not any(listing.remote for listing in listings.values()):
        raise InputError(
            f"{where}: nvidia-smi nvlink -s says which NVLinks are up, not where they end; "
            "add the output of nvidia-smi topo -m or of nvidia-smi nvlink -R to the file"
        )
    gpu_at = match_peers(listings)
    address = {gpu: bus for bus, gpu in (gpu_at or {}).items()}
    devices = [
        Device(f"gpu{gpu}", bus_id=address.get(gpu), source=REMOTE, extra=_get_identity(listing))
        for gpu, listing in sorted(listings.items())
    ]
    rate, source = choose_lane_rate(listings)
    links: list[Link] = []
    for gpu, listing in sorted(listings.items()):
        ends = Counter(
            "nvswitch0" if gpu_at is None else f"gpu{gpu_at[bus]}"
            for bus in listing.remote.values()
        )
        for end, number in ends.items():
            us = LATENCY_us["nvswitch" if gpu_at is None else "nvlink"]
            link = Link(f"gpu{gpu}", end, rate * number, us, "nvlink", number, source)
            # a GPU at the other end lists the same links: each pair is joined once
            if gpu_at is None or link.src < link.dst:
                links += both_ways(link)
    if gpu_at is None:
        adding = nvswitch_adding(
            links_per_gpu=max(len(listing.remote) for listing in listings.values())
        )
        devices.append(Device("nvswitch0", "switch", "nvswitch", source=REMOTE, in_network=adding))
        notes.append("the remote ends are not the GPUs listed; taken for NVSwitches, as NCCL does")
    else:
        notes.append(
            "GPUs are numbered in the order of their bus addresses: so the remote ends are told "
            "apart"
        )
    notes += _note_different_counts(listings)
    notes.append("PCIe, CPUs and NICs are not told; nvidia-smi topo -m says more")
    return devices, links


def _get_identity(listing: NvlinkListing) -> dict[str, str]:
    """Return the name and UUID that a listing gives, as far as it does."""
    return {
        key: text
        for key, text in ((keys.GPU_NAME, listing.name), (keys.GPU_UUID, listing.uuid))
        if text
    }


def _note_different_counts(listings: Mapping[int, NvlinkListing]) -> list[str]:
    """Return a note on GPUs whose active links by -s are not as many as -R lists."""
    odd = [
        f"gpu{gpu} ({sum(map(bool, listing.speed.values()))} and {len(listing.remote)})"
        for gpu, listing in sorted(listings.items())
        if listing.speed
        and listing.remote
        and sum(map(bool, listing.speed.values())) != len(listing.remote)
    ]
    return [f"active links by -s and ends by -R differ in number: {list_some(odd)}"] if odd else []


def build_nvlink_facts(listings: Mapping[int, NvlinkListing]) -> list[Fact]:
    """Return what the two outputs say of GPUs and their links, as facts."""
    facts: list[Fact] = []
    gpu_at = match_peers(listings)
    kind = "switch" if gpu_at is None else "gpu"
    address = {gpu: bus for bus, gpu in (gpu_at or {}).items()}
    for gpu, listing in sorted(listings.items()):
        source = REMOTE if listing.remote else STATUS
        facts += [
            Fact(gpu_subject(gpu), key, text, source)
            for key, text in _get_identity(listing).items()
        ]
        if gpu in address:
            facts.append(
                Fact(
                    gpu_subject(gpu),
                    keys.GPU_BUS_ID,
                    address[gpu],
                    f"{REMOTE}, by the order of the GPUs",
                )
            )
        for number, speed in sorted(listing.speed.items()):
            subject = nvlink_subject(gpu, number)
            facts.append(
                Fact(subject, keys.NVLINK_STATE, "active" if speed else "inactive", STATUS)
            )
            if speed:
                facts.append(
                    Fact(subject, keys.NVLINK_SPEED_MBps, int(Fraction(speed) * 1000), STATUS)
                )
        for number, bus in zip(_number_links(listing), listing.remote.values(), strict=True):
            subject = nvlink_subject(gpu, number)
            facts += [
                Fact(subject, keys.NVLINK_REMOTE_BUS_ID, bus, REMOTE),
                Fact(subject, keys.NVLINK_REMOTE_KIND, kind, REMOTE),
            ]
            if not listing.speed:
                facts.append(Fact(subject, keys.NVLINK_STATE, "active", REMOTE))
    return facts


def _number_links(listing: NvlinkListing) -> list[int]:
    """Return the numbers of the links of -R, which counts active ones only: those of -s where it
    agrees, else its own.
    """
    active = sorted(number for number, speed in listing.speed.items() if speed)
    return active if len(active) == len(listing.remote) else list(listing.remote)
