"""Ways beside PCI Express: NVLinks, direct or through NVSwitches, and the links that only topoplan's own matrices name.

nvidia-smi prints the same NV# for # links to a peer and for # links into NVSwitches. No GPU has more than 18 NVLinks, so
where the labels of a row add up to more, they cannot all be direct: GPUs that all have NV# with each other are then
joined through one `nvswitch`, each with as many links as its best label says. (Eight GPUs with NV12 are on NVSwitches;
four with NV6 are joined pairwise, 18 links each.) All other NV# are direct links. Of two GPUs alone nothing can tell
which it is, and nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from ...graph import DEFAULT_BANDWIDTH_GBps, Device, Link
from ...hardware import NVLINK_LINKS_PER_GPU, LATENCY_us, XGMI_DATASHEET_MI250_GBps
from .cells import count, family, listed, members, nvlinks
from .pcie_tree import Draft

MOST_LINKS = max(NVLINK_LINKS_PER_GPU.values())
NVLINK_GBps = Fraction(25)
NVLINK_SOURCE = "assumed: 25 GB/s an NVLink, as in most generations"

_MOST_SWITCHES = 4096
_RATES: Mapping[str, tuple[str, Fraction, str]] = {
    "XGMI": ("xgmi", XGMI_DATASHEET_MI250_GBps, "assumed: xGMI links of an MI250"),
    "C2C": ("c2c", Fraction(450), "assumed: NVLink-C2C of a Grace Hopper superchip (datasheet: 900 GB/s both ways)"),
    "LNK": ("link", DEFAULT_BANDWIDTH_GBps, "assumed: the text has no rates"),
}
_NETWORK_GBps = Fraction(25, 2)
_NETWORK_SOURCE = "assumed: a port of 100 Gb/s"
_SWITCH_SOURCE = "assumed: the text has no rates"


def join_direct(draft: Draft, lane: tuple[Fraction, str], switched: bool | None) -> None:
    """Add every way that is not PCI Express.

    `lane` is the rate of an NVLink and its source. `switched` says whether NVLinks end at NVSwitches, where that is known.
    """
    done = [] if switched is False else _nvswitches(draft, lane, bool(switched))
    _direct(draft, lane, done)
    _switches(draft)
    _networks(draft)


# -- NVLinks ---------------------------------------------------------------------------------------------------------


def _nvswitches(draft: Draft, lane: tuple[Fraction, str], certain: bool) -> list[int]:
    """Sets of GPUs on NVSwitches, which are added."""
    found: list[int] = []
    for group in _components(draft, "NV"):
        cells = draft.cells.told
        pairs = ((i, j) for i in members(group) for j in members(group) if i != j)
        told = {(i, j): nvlinks(cells[i][j]) for i, j in pairs if cells[i][j] is not None}
        lanes = {i: max(links for pair, links in told.items() if i in pair) for i in members(group)}
        sums = [sum(links for (src, _), links in told.items() if src == i) for i in lanes]
        if not certain and max(sums) <= MOST_LINKS:
            continue
        if any(links != min(lanes[i], lanes[j]) for (i, j), links in told.items()):
            names = listed(draft.names(group))
            draft.notes.append(
                f"{names}: more NVLinks than a GPU has, but not alike for all pairs; taken as direct links"
            )
            continue
        _nvswitch(draft, lane, lanes)
        found.append(group)
    return found


def _nvswitch(draft: Draft, lane: tuple[Fraction, str], lanes: dict[int, int]) -> None:
    """An NVSwitch (one device for all of them) with so many lanes to each device."""
    switch = draft.new_id("nvswitch", sum(device.family == "nvswitch" for device in draft.devices))
    draft.devices.append(Device(switch, "switch", "nvswitch", source=draft.source))
    rate, source = lane
    for i, links in lanes.items():
        ident = draft.cells.ids[i]
        draft.join(Link(ident, switch, rate * links, LATENCY_us["nvswitch"], "nvlink", links, source))
    most = max(lanes.values())
    fewer = [draft.cells.ids[i] for i, links in lanes.items() if links < most]
    if fewer:
        draft.notes.append(f"{listed(fewer)}: fewer NVLinks than the {most} of the others")


def _components(draft: Draft, label: str) -> list[int]:
    """Sets of devices that a label connects, of two and more."""
    row = draft.cells.at[label]
    rest, found = sum(1 << i for i, mask in enumerate(row) if mask), []
    while rest:
        group, fresh = 0, rest & -rest
        while fresh:
            group |= fresh
            fresh = _union_of(row, fresh) & ~group
        found.append(group)
        rest &= ~group
    return found


def _union_of(row: list[int], mask: int) -> int:
    out = 0
    for i in members(mask):
        out |= row[i]
    return out


def _direct(draft: Draft, lane: tuple[Fraction, str], switched: list[int]) -> None:
    """A link for each direction whose label names one: NV#, XGMI#, C2C, LNK."""
    cells = draft.cells
    kinds = {**_RATES, "NV": ("nvlink", *lane)}
    for i, here in enumerate(cells.ids):
        own = next((group for group in switched if group >> i & 1), 0)
        for j in members(cells.any_of(i, *kinds) >> i + 1 << i + 1):
            for src, dst, label in ((here, cells.ids[j], cells.told[i][j]), (cells.ids[j], here, cells.told[j][i])):
                named = family(label or "")
                if named not in kinds or (named == "NV" and own >> j & 1):
                    continue
                kind, rate, source = kinds[named]
                lanes = count(label) or 1
                draft.links.append(Link(src, dst, rate * lanes, LATENCY_us["nvlink"], kind, lanes, source))


# -- switches and networks --------------------------------------------------------------------------------------------


def _switches(draft: Draft) -> None:
    """Switches for the pairs labelled SW: sets in which each such pair is, as large as they come."""
    cells = draft.cells
    left = list(cells.at["SW"])
    joined = [cells.any_of(i, "SW", "NV", "XGMI", "C2C", "LNK") for i in range(len(cells.ids))]
    number = 0
    for i in range(len(left)):
        while left[i]:
            if number == _MOST_SWITCHES:
                draft.notes.append(
                    f"pairs labelled SW would need more than {_MOST_SWITCHES} switches; some are left out"
                )
                return
            first = left[i] & -left[i]
            group = 1 << i | first
            common = joined[i] & joined[first.bit_length() - 1]
            while common:
                low = (common & left[i] or common) & -(common & left[i] or common)
                group |= low
                common &= joined[low.bit_length() - 1]
            for k in members(group):
                left[k] &= ~group
            _switch(draft, "switch", None, group)
            number += 1


def _networks(draft: Draft) -> None:
    """A network for the devices that NET connects: on it are NICs, and GPUs that reach none of those."""
    cells = draft.cells
    for group in _components(draft, "NET"):
        nics = group & ~cells.gpus
        alone = sum(1 << i for i in members(group & cells.gpus) if not _reached(draft, i) & nics)
        _switch(draft, "network", "network", nics | alone)


def _reached(draft: Draft, i: int) -> int:
    return draft.cells.any_of(i, *(label for label in draft.cells.at if label not in ("NET", "DIS")))


def _switch(draft: Draft, stem: str, family_name: str | None, group: int) -> None:
    switch = draft.new_id(stem)
    draft.devices.append(Device(switch, "switch", family_name, source=draft.source))
    for name in draft.names(group):
        if family_name == "network":
            draft.join(Link(name, switch, _NETWORK_GBps, LATENCY_us["network"], "network", source=_NETWORK_SOURCE))
        else:
            draft.join(Link(name, switch, DEFAULT_BANDWIDTH_GBps, LATENCY_us["nvswitch"], source=_SWITCH_SOURCE))
