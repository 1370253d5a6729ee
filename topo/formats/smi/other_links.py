"""Infer the links beside PCI Express: NVLinks, direct or through NVSwitches, and those of
topoplan's own labels.

nvidia-smi prints the same NV# for # links to a peer and for # links into NVSwitches. No GPU has
more than 18 NVLinks, so where the labels of a row add up to more, they cannot all be direct: GPUs
that all have NV# with each other are then joined through one `nvswitch`, each with as many links as
its best label says. (Eight GPUs with NV12 are on NVSwitches; four with NV6 are joined pairwise, 18
links each.) All other NV# are direct links. For two GPUs alone it cannot be decided, and nothing
depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from ...graph import DEFAULT_BANDWIDTH_GBps, Device, Link
from ...hardware import NVLINK_LINKS_PER_GPU, LATENCY_us, XGMI_DATASHEET_MI250_GBps, nvswitch_adding
from ...notes import assumed
from .cells import (
    count_bonded,
    count_nvlinks,
    find_components,
    find_family,
    iterate_members,
    list_some,
)
from .pcie_tree import InferredTopology

MOST_LINKS = max(NVLINK_LINKS_PER_GPU.values())
NVLINK_GBps = Fraction(25)
NVLINK_SOURCE = assumed("25 GB/s an NVLink, as in most generations")

_MOST_SWITCHES = 4096
_RATES: Mapping[str, tuple[str, Fraction, str]] = {
    "XGMI": ("xgmi", XGMI_DATASHEET_MI250_GBps, assumed("xGMI links of an MI250")),
    "C2C": (
        "c2c",
        Fraction(450),
        assumed("NVLink-C2C of a Grace Hopper superchip (datasheet: 900 GB/s both ways)"),
    ),
    "LNK": ("link", DEFAULT_BANDWIDTH_GBps, assumed("the text has no rates")),
}
_NETWORK_GBps = Fraction(25, 2)
_NETWORK_SOURCE = assumed("a port of 100 Gb/s")
_SWITCH_SOURCE = assumed("the text has no rates")


def join_other_links(
    inferred: InferredTopology, lane: tuple[Fraction, str], switched: bool | None
) -> None:
    """Add every link that is not PCI Express.

    `lane` is the rate of an NVLink and its source. `switched` says whether NVLinks end at
    NVSwitches, where that is known.
    """
    switched_groups = [] if switched is False else _add_nvswitches(inferred, lane, bool(switched))
    _add_direct_links(inferred, lane, switched_groups)
    _add_switches(inferred)
    _add_networks(inferred)


# -- NVLinks
# ---------------------------------------------------------------------------------------------------------


def _add_nvswitches(
    inferred: InferredTopology, lane: tuple[Fraction, str], certain: bool
) -> list[int]:
    """Add the NVSwitches that labels show, and return the sets of GPUs on them."""
    groups: list[int] = []
    for group in _find_groups(inferred, "NV"):
        labels = inferred.cells.labels
        pairs = ((i, j) for i in iterate_members(group) for j in iterate_members(group) if i != j)
        links_of_pair = {
            (i, j): count_nvlinks(labels[i][j]) for i, j in pairs if labels[i][j] is not None
        }
        lanes = {
            i: max(links for pair, links in links_of_pair.items() if i in pair)
            for i in iterate_members(group)
        }
        sums = [sum(links for (src, _), links in links_of_pair.items() if src == i) for i in lanes]
        # as many links as a GPU can have may all be direct; more cannot
        if not certain and max(sums) <= MOST_LINKS:
            continue
        if any(links != min(lanes[i], lanes[j]) for (i, j), links in links_of_pair.items()):
            names = list_some(inferred.get_names(group))
            inferred.notes.append(
                f"{names}: more NVLinks than a GPU has, but not alike for all pairs; taken as "
                "direct links"
            )
            continue
        _add_nvswitch(inferred, lane, lanes)
        groups.append(group)
    return groups


def _add_nvswitch(
    inferred: InferredTopology, lane: tuple[Fraction, str], lanes: dict[int, int]
) -> None:
    """Add an NVSwitch (one device for all of them) with `lanes[i]` links to the device of column
    i.
    """
    switch = inferred.pick_id(
        "nvswitch", sum(device.family == "nvswitch" for device in inferred.devices)
    )
    adding = nvswitch_adding(links_per_gpu=max(lanes.values()))
    inferred.devices.append(
        Device(switch, "switch", "nvswitch", source=inferred.source, in_network=adding)
    )
    rate, source = lane
    for i, links in lanes.items():
        ident = inferred.cells.ids[i]
        inferred.join(
            Link(ident, switch, rate * links, LATENCY_us["nvswitch"], "nvlink", links, source)
        )
    most = max(lanes.values())
    fewer = [inferred.cells.ids[i] for i, links in lanes.items() if links < most]
    if fewer:
        inferred.notes.append(f"{list_some(fewer)}: fewer NVLinks than the {most} of the others")


def _find_groups(inferred: InferredTopology, label: str) -> list[int]:
    """Return the sets of devices that a label connects, of two and more."""
    row = inferred.cells.with_label[label]
    return find_components(sum(1 << i for i, mask in enumerate(row) if mask), row.__getitem__)


def _add_direct_links(
    inferred: InferredTopology, lane: tuple[Fraction, str], switched: list[int]
) -> None:
    """Add a link for each direction whose label names one: NV#, XGMI#, C2C, LNK."""
    cells = inferred.cells
    kinds = {**_RATES, "NV": ("nvlink", *lane)}
    for i, sender in enumerate(cells.ids):
        same_switch = next((group for group in switched if group >> i & 1), 0)
        for j in iterate_members(cells.find_with(i, *kinds) >> i + 1 << i + 1):
            for src, dst, label in (
                (sender, cells.ids[j], cells.labels[i][j]),
                (cells.ids[j], sender, cells.labels[j][i]),
            ):
                label_family = find_family(label or "")
                if label_family not in kinds or (label_family == "NV" and same_switch >> j & 1):
                    continue
                kind, rate, source = kinds[label_family]
                lanes = count_bonded(label) or 1
                inferred.links.append(
                    Link(src, dst, rate * lanes, LATENCY_us["nvlink"], kind, lanes, source)
                )


# -- switches and networks
# --------------------------------------------------------------------------------------------


def _add_switches(inferred: InferredTopology) -> None:
    """Add switches for the pairs labelled SW: sets in which each such pair is, as large as they
    come.
    """
    cells = inferred.cells
    unjoined = list(cells.with_label["SW"])
    joined = [cells.find_with(i, "SW", "NV", "XGMI", "C2C", "LNK") for i in range(len(cells.ids))]
    number = 0
    for i in range(len(unjoined)):
        while unjoined[i]:
            if number == _MOST_SWITCHES:
                inferred.notes.append(
                    f"pairs labelled SW would need more than {_MOST_SWITCHES} switches; some are "
                    "left out"
                )
                return
            # grow a clique from the pair, first by pairs that no switch joins yet: fewest switches,
            # not all smallest
            first = unjoined[i] & -unjoined[i]
            group = 1 << i | first
            common = joined[i] & joined[first.bit_length() - 1]
            while common:
                low = (common & unjoined[i] or common) & -(common & unjoined[i] or common)
                group |= low
                common &= joined[low.bit_length() - 1]
            for k in iterate_members(group):
                unjoined[k] &= ~group
            _add_switch(inferred, "switch", None, group)
            number += 1


def _add_networks(inferred: InferredTopology) -> None:
    """Add a network for the devices that NET connects: on it are NICs, and GPUs that reach none of
    those.
    """
    cells = inferred.cells
    for group in _find_groups(inferred, "NET"):
        nics = group & ~cells.gpus
        alone = sum(
            1 << i
            for i in iterate_members(group & cells.gpus)
            if not _find_reached(inferred, i) & nics
        )
        _add_switch(inferred, "network", "network", nics | alone)


def _find_reached(inferred: InferredTopology, i: int) -> int:
    """Return the devices that one reaches without a network."""
    return inferred.cells.find_with(
        i, *(label for label in inferred.cells.with_label if label not in ("NET", "DIS"))
    )


def _add_switch(inferred: InferredTopology, stem: str, family_name: str | None, group: int) -> None:
    """Add a switch or network with a link to each device of a set."""
    switch = inferred.pick_id(stem)
    inferred.devices.append(Device(switch, "switch", family_name, source=inferred.source))
    for name in inferred.get_names(group):
        if family_name == "network":
            inferred.join(
                Link(
                    name,
                    switch,
                    _NETWORK_GBps,
                    LATENCY_us["network"],
                    "network",
                    source=_NETWORK_SOURCE,
                )
            )
        else:
            inferred.join(
                Link(
                    name,
                    switch,
                    DEFAULT_BANDWIDTH_GBps,
                    LATENCY_us["nvswitch"],
                    source=_SWITCH_SOURCE,
                )
            )
