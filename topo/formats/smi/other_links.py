"""Infer the links other than PCI Express: NVLinks, and those of topoplan's own labels.

NVLinks are direct or lead to NVSwitches; nvidia-smi prints the same NV# for # links to a peer and
for # links into NVSwitches. Labels of a row that add up to more than the GPU has, or any GPU if its
board is not known (18), cannot all be direct: GPUs that all have NV# with each other are then
joined through one `nvswitch`, each with the number of links in its largest label. (Eight GPUs with
NV12 are on NVSwitches; four H100 with NV6 are joined pairwise, 18 links each.) All other NV# are
direct links. With only two GPUs both are possible, and nothing depends on it.

An InferredTopology (inferred.py) has the labels of the matrix and what has been inferred from them.
"""

from fractions import Fraction

from ...boards import MAX_NVLINKS, get_board
from ...graph import DEFAULT_BANDWIDTH_GBps, Device, Link
from ...hardware import LATENCY_us, nvswitch_adding
from ...notes import assumed
from .cells import count_nvlinks, find_components, iterate_members, list_some, split_label
from .inferred import InferredTopology

# Bounds the switches: a matrix of 512 devices could need one for each of its 131,000 pairs.
_MAX_SWITCHES = 4096
# Labels of direct links other than NV#: kind, GB/s of one link in one direction, and source.
_RATES = {
    "XGMI": ("xgmi", get_board("MI250").wire_GBps, assumed("xGMI links of an MI250")),
    "C2C": (
        "c2c",
        Fraction(450),
        assumed("NVLink-C2C of a Grace Hopper superchip (datasheet: 900 GB/s in both directions)"),
    ),
    "LNK": ("link", DEFAULT_BANDWIDTH_GBps, assumed("the text has no rates")),
}
# A link to a network or other switch: kind, GB/s in one direction, latency and source.
_TO_SWITCH = {
    "network": (
        "network",
        Fraction(25, 2),
        LATENCY_us["network"],
        assumed("a port of 100 Gb/s"),
    ),
    "switch": (
        "link",
        DEFAULT_BANDWIDTH_GBps,
        LATENCY_us["nvswitch"],
        assumed("the text has no rates"),
    ),
}


def join_other_links(
    inferred: InferredTopology, nvlink: tuple[Fraction, str], switched: bool | None
) -> None:
    """Add to `inferred` every link that is not PCI Express, and the switches that they need.

    `nvlink` is the rate of one NVLink in GB/s and its source. `switched` is whether NVLinks end at
    NVSwitches, None if only the labels tell.
    """
    switched_groups = [] if switched is False else _add_nvswitches(inferred, nvlink, bool(switched))
    _add_direct_links(inferred, nvlink, switched_groups)
    _add_switches(inferred)
    _add_networks(inferred)


# -- NVLinks -------------------------------------------------------------------


def _add_nvswitches(
    inferred: InferredTopology, nvlink: tuple[Fraction, str], certain: bool
) -> list[int]:
    """Add the NVSwitches that labels imply, and return the sets of GPUs on them."""
    groups: list[int] = []
    labels = inferred.cells.labels
    for group in _find_groups(inferred, "NV"):
        links_of_pair = {
            (i, j): count_nvlinks(labels[i][j])
            for i in iterate_members(group)
            for j in iterate_members(group)
            if i != j and labels[i][j] is not None
        }
        counts = {
            i: max(links for pair, links in links_of_pair.items() if i in pair)
            for i in iterate_members(group)
        }
        # links may all be direct up to the number that a GPU can have, but no more
        if not certain and all(
            sum(map(count_nvlinks, labels[i])) <= _find_limit(inferred, i) for i in counts
        ):
            continue
        if any(n != min(counts[i], counts[j]) for (i, j), n in links_of_pair.items()):
            inferred.notes.append(
                f"{list_some(inferred.get_names(group))}: more NVLinks than a GPU has, but not "
                "alike for all pairs; taken as direct links"
            )
            continue
        _add_nvswitch(inferred, nvlink, counts)
        groups.append(group)
    return groups


def _find_limit(inferred: InferredTopology, gpu: int) -> int:
    """Return the most NVLinks that the GPU of a column can have."""
    board = inferred.rates.boards.get(gpu)
    return MAX_NVLINKS if board is None or board.is_card or not board.wires else board.wires


def _add_nvswitch(
    inferred: InferredTopology, nvlink: tuple[Fraction, str], counts: dict[int, int]
) -> None:
    """Add an NVSwitch (one device for all of them) with `counts[i]` links to column i's device."""
    switch = inferred.pick_id(
        "nvswitch", sum(device.family == "nvswitch" for device in inferred.devices)
    )
    most = max(counts.values())
    adding = nvswitch_adding(links_per_gpu=most)
    inferred.devices.append(
        Device(switch, "switch", "nvswitch", source=inferred.source, in_network=adding)
    )
    (rate, source), latency, ids = nvlink, LATENCY_us["nvswitch"], inferred.cells.ids
    for i, count in counts.items():
        inferred.join(Link(ids[i], switch, rate * count, latency, "nvlink", count, source))
    fewer = [ids[i] for i, count in counts.items() if count < most]
    if fewer:
        inferred.notes.append(f"{list_some(fewer)}: fewer NVLinks than the {most} of the others")


def _find_groups(inferred: InferredTopology, label: str) -> list[int]:
    """Return the sets of two or more devices that a label connects."""
    row = inferred.cells.with_label[label]
    return find_components(sum(1 << i for i, mask in enumerate(row) if mask), row.__getitem__)


def _add_direct_links(
    inferred: InferredTopology, nvlink: tuple[Fraction, str], switched: list[int]
) -> None:
    """Add a link for each direction whose label names one: NV#, XGMI#, C2C, LNK."""
    cells = inferred.cells
    kinds = {**_RATES, "NV": ("nvlink", *nvlink)}
    for i in range(len(cells.ids)):
        same_switch = next((group for group in switched if group >> i & 1), 0)
        for j in iterate_members(cells.find_with(i, *kinds) >> i + 1 << i + 1):
            for src, dst in ((i, j), (j, i)):
                family, count = split_label(cells.labels[src][dst] or "")
                if family not in kinds or (family == "NV" and same_switch >> j & 1):
                    continue
                kind, rate, source = kinds[family]
                inferred.links.append(
                    Link(
                        cells.ids[src],
                        cells.ids[dst],
                        rate * count,
                        LATENCY_us["nvlink"],
                        kind,
                        count,
                        source,
                    )
                )


# -- switches and networks -----------------------------------------------------


def _add_switches(inferred: InferredTopology) -> None:
    """Add switches for the pairs labelled SW, one per clique of such pairs, few and large ones."""
    cells = inferred.cells
    unjoined = list(cells.with_label["SW"])
    joined = [cells.find_with(i, "SW", "NV", "XGMI", "C2C", "LNK") for i in range(len(cells.ids))]
    number = 0
    for i in range(len(unjoined)):
        while unjoined[i]:
            if number == _MAX_SWITCHES:
                inferred.notes.append(
                    f"pairs labelled SW would need more than {_MAX_SWITCHES} switches; some are "
                    "left out"
                )
                return
            # grow a clique from the pair, first by pairs that no switch joins yet: this gives the
            # fewest switches, though not the smallest ones
            first = unjoined[i] & -unjoined[i]
            group = 1 << i | first
            common = joined[i] & joined[first.bit_length() - 1]
            while common:
                preferred = common & unjoined[i] or common
                low = preferred & -preferred
                group |= low
                common &= joined[low.bit_length() - 1]
            for k in iterate_members(group):
                unjoined[k] &= ~group
            _add_switch(inferred, "switch", group)
            number += 1


def _add_networks(inferred: InferredTopology) -> None:
    """Add a network for each set of devices that NET connects.

    It is joined to the NICs of the set and to GPUs without one.
    """
    cells = inferred.cells
    direct_labels = [label for label in cells.with_label if label not in ("NET", "DIS")]
    for group in _find_groups(inferred, "NET"):
        nics = group & ~cells.gpus
        alone = sum(
            1 << i
            for i in iterate_members(group & cells.gpus)
            if not cells.find_with(i, *direct_labels) & nics
        )
        _add_switch(inferred, "network", nics | alone)


def _add_switch(inferred: InferredTopology, stem: str, group: int) -> None:
    switch, family = inferred.pick_id(stem), "network" if stem == "network" else None
    inferred.devices.append(Device(switch, "switch", family, source=inferred.source))
    kind, rate, latency, source = _TO_SWITCH[stem]
    for name in inferred.get_names(group):
        inferred.join(Link(name, switch, rate, latency, kind, source=source))
