"""Read `nvidia-smi nvlink -R` and `-s`: the remote address, state and rate of each NVLink.

Neither prints a GPU's own address. nvidia-smi numbers GPUs in the order of their addresses, so the
remote addresses, sorted, belong to the GPUs that have links, provided that there are equally many
and that all links then have an end on both sides. Otherwise they are taken for NVSwitches, as NCCL
takes addresses that it does not know.

An NvlinkListing (parser.py) is what the output says of one GPU's NVLinks.
"""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from ...boards import find_board
from ...errors import InputError
from ...facts import Fact, keys
from ...facts.keys import gpu_subject, nvlink_subject
from ...graph import Device, Link, both_directions
from ...hardware import LATENCY_us, NVLINK_DATASHEET_GBps, nvswitch_adding
from .cells import Cells, count_nvlinks, iterate_members, list_some
from .inferred import AssumedRates, assume_rates
from .parser import NvlinkListing, SmiOutput

STATUS, REMOTE = "nvidia-smi nvlink -s", "nvidia-smi nvlink -R"
# -s prints the raw rate, 26.562 GB/s for the 25 GB/s of the datasheet: 6 % more.
_RAW_EXCESS = Fraction(7, 100)


def match_peers(listings: Mapping[int, NvlinkListing]) -> dict[str, int] | None:
    """Return the number of the GPU at each remote PCI address; None if NVSwitches are at them.

    `listings` are by GPU number. nvidia-smi prints no GPU's own address: the sorted addresses are
    taken to be those of the GPUs in order, if the links then agree at both ends.
    """
    linked = sorted(gpu for gpu, listing in listings.items() if listing.remote)
    addresses = sorted({bus for listing in listings.values() for bus in listing.remote.values()})
    if len(linked) != len(addresses):
        return None
    gpu_at = dict(zip(addresses, linked, strict=True))
    ends = {gpu: Counter(gpu_at[bus] for bus in listings[gpu].remote.values()) for gpu in linked}
    fits = all(a != b and ends[a][b] == ends[b][a] for a in linked for b in ends[a])
    return gpu_at if fits else None


def choose_nvlink_rate(
    listings: Mapping[int, NvlinkListing], rates: AssumedRates
) -> tuple[Fraction, str]:
    """Return the rate of one NVLink in GB/s in one direction, and its source.

    `listings` are by GPU number. The rate is the slowest that -s reports, or the datasheet's if
    they differ by at most 7 %. If none is reported, it is the one in `rates`.
    """
    speeds = {speed for listing in listings.values() for speed in listing.speed.values()}
    reported = [speed for speed in speeds if speed and float(speed) > 0]
    if not reported:
        return rates.nvlink_GBps, rates.nvlink_source
    slowest = min(reported, key=Fraction)
    raw = Fraction(slowest)
    source = f"{STATUS}: {slowest} GB/s a link"
    for rate in set(NVLINK_DATASHEET_GBps.values()):
        if rate != raw and abs(raw - rate) <= _RAW_EXCESS * rate:
            return rate, f"{source}, {float(rate):g} by the datasheet"
    return raw, source


def note_other_counts(
    listings: Mapping[int, NvlinkListing], cells: Cells, notes: list[str]
) -> None:
    """Note GPUs whose active NVLinks, by `nvidia-smi nvlink`, do not fit a matrix's NV#.

    `listings` are by GPU number, `cells` are the labels of the matrix. The number in NV# counts the
    links to one GPU or, on NVSwitches, all links of the GPU: a GPU's active links fit if they are
    as many as its largest NV# says, or as all its NV# together.
    """
    odd = []
    for i in iterate_members(cells.gpus):
        listing = listings.get(int(cells.ids[i][3:]))
        if listing is None or not (listing.speed or listing.remote):
            continue
        active = sum(map(bool, listing.speed.values())) if listing.speed else len(listing.remote)
        counts = [count_nvlinks(cells.labels[i][j]) for j in iterate_members(cells.gpus)]
        if active not in (max(counts), sum(counts)):
            odd.append(f"{active} of {cells.ids[i]}")
    if odd:
        notes.append(
            f"nvidia-smi nvlink lists active NVLinks that do not fit the matrix: {list_some(odd)}; "
            "the matrix is taken"
        )


def join_nvlinks(output: SmiOutput, where: str) -> tuple[list[Device], list[Link], list[str]]:
    """Return the devices, NVLinks and notes of `nvidia-smi nvlink -R` output without a matrix.

    The devices are the GPUs, and one NVSwitch if links end at NVSwitches. Raise InputError if no
    link has a known end; `where` names the file.
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
        Device(f"gpu{gpu}", bus_id=address.get(gpu), source=REMOTE, extra=listing.identity)
        for gpu, listing in sorted(listings.items())
    ]
    boards = {gpu: known for gpu, x in listings.items() if (known := find_board(x.name))}
    rate, source = choose_nvlink_rate(listings, assume_rates(boards, "by the names of the GPUs"))
    latency = LATENCY_us["nvswitch" if gpu_at is None else "nvlink"]
    links: list[Link] = []
    odd: list[str] = []
    for gpu, listing in sorted(listings.items()):
        ends = Counter(
            "nvswitch0" if gpu_at is None else f"gpu{gpu_at[bus]}"
            for bus in listing.remote.values()
        )
        for end, number in ends.items():
            link = Link(f"gpu{gpu}", end, rate * number, latency, "nvlink", number, source)
            # a GPU at the other end lists the same links: each pair is joined once
            if gpu_at is None or link.src < link.dst:
                links += both_directions(link)
        active = sum(map(bool, listing.speed.values()))
        if listing.speed and listing.remote and active != len(listing.remote):
            odd.append(f"gpu{gpu} ({active} and {len(listing.remote)})")
    if gpu_at is None:
        adding = nvswitch_adding(
            links_per_gpu=max(len(listing.remote) for listing in listings.values())
        )
        devices.append(Device("nvswitch0", "switch", "nvswitch", source=REMOTE, in_network=adding))
        notes = ["the remote ends are not the GPUs listed; taken for NVSwitches, as NCCL does"]
    else:
        notes = ["the remote ends are identified by numbering GPUs in the order of bus addresses"]
    if odd:
        notes.append(f"active links by -s and ends by -R differ in number: {list_some(odd)}")
    notes.append("PCIe, CPUs and NICs are not listed; nvidia-smi topo -m says more")
    return devices, links, notes


def build_nvlink_facts(listings: Mapping[int, NvlinkListing]) -> list[Fact]:
    """Return the facts in `nvidia-smi nvlink -R` and `-s`; `listings` are by GPU number."""
    facts: list[Fact] = []
    gpu_at = match_peers(listings)
    kind = "switch" if gpu_at is None else "gpu"
    address = {gpu: bus for bus, gpu in (gpu_at or {}).items()}
    for gpu, listing in sorted(listings.items()):
        source = REMOTE if listing.remote else STATUS
        facts += [
            Fact(gpu_subject(gpu), key, text, source) for key, text in listing.identity.items()
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
            subject, state = nvlink_subject(gpu, number), "active" if speed else "inactive"
            facts.append(Fact(subject, keys.NVLINK_STATE, state, STATUS))
            if speed:
                facts.append(
                    Fact(subject, keys.NVLINK_SPEED_MBps, int(Fraction(speed) * 1000), STATUS)
                )
        # -R numbers active links only; if -s lists equally many, it has the right numbers
        active = sorted(number for number, speed in listing.speed.items() if speed)
        numbers = active if len(active) == len(listing.remote) else list(listing.remote)
        for number, bus in zip(numbers, listing.remote.values(), strict=True):
            subject = nvlink_subject(gpu, number)
            facts += [
                Fact(subject, keys.NVLINK_REMOTE_BUS_ID, bus, REMOTE),
                Fact(subject, keys.NVLINK_REMOTE_KIND, kind, REMOTE),
            ]
            if not listing.speed:
                facts.append(Fact(subject, keys.NVLINK_STATE, "active", REMOTE))
    return facts
