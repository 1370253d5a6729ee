"""Checks of PCI Express links: impossible declarations, and devices below full width or rate.

A link's state is joined from the facts of NVML and sysfs, from `extra["pcie"]` ("Gen4 x16", written
by the probe) and from `extra["pci"]` (of an NCCL XML file, which has the maximum generation and
width of the parts).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from ..facts import keys
from ..facts.keys import gpu_subject, pci_subject
from ..facts.view import read_pci_details
from ..graph import Device
from ..hardware import PCIE_GTps, pcie_GBps, pcie_generation
from .finding import Case, Finding, format_GBps, join_names
from .view import Check, DoctorView, has_two_gpus, parse_whole

_STATE = re.compile(r"Gen([1-6]) x([0-9]{1,2})")
_WIDTHS = range(1, 33)
_OLD, _MODERN = 2, 3  # PCIe generations: up to Gen2 8b/10b coding, then 128b/130b
# Mb/s of the fastest NIC there is: 1.6 Tb/s (ConnectX-9 datasheet, both ports of 800 Gb/s
# together).
MAX_NIC_Mbps = 1_600_000


@dataclass(frozen=True)
class PcieState:
    """The maximum and the current generation and number of PCIe lanes of a device's link.

    Unknown values are None.
    """

    generation: int | None
    width: int | None
    now_generation: int | None
    now_width: int | None
    evidence: tuple[str, ...]

    @property
    def lanes(self) -> int | None:
        """The number of PCIe lanes in use, or the maximum if that is unknown; None if both are."""
        return self.now_width or self.width

    @property
    def raw_GBps(self) -> Fraction | None:
        """GB/s in one direction on the PCIe lanes in use, before packet headers.

        It is the transfer rate of the link's maximum generation, after 8b/10b coding (Gen1 and 2)
        or 128b/130b coding (later), by the PCI Express base specifications. None if unknown.
        """
        if self.generation is None or self.lanes is None:
            return None
        coding = Fraction(8, 10) if self.generation <= _OLD else Fraction(128, 130)
        return PCIE_GTps[self.generation] * coding * self.lanes / 8


def find_pcie_state(view: DoctorView, device: Device) -> PcieState | None:
    """Return the state of a device's PCIe link, or None if nothing is known about it.

    NVML takes precedence, then sysfs, then the device's file.
    """
    if device.id not in view.pcie_states:
        view.pcie_states[device.id] = _join_state(view, device)
    state: PcieState | None = view.pcie_states[device.id]
    return state


def _join_state(view: DoctorView, device: Device) -> PcieState | None:
    values: dict[str, tuple[int, str]] = {}
    index = view.index_of.get(device.id)
    subject = gpu_subject(index)
    for name, (key, check) in _NVML_KEYS.items() if index is not None else ():
        value = check(view.facts.get_number(subject, key))
        if value:
            values[name] = value, view.format_fact(subject, key)
    _add_sysfs(view, device, values)
    _add_attributes(view, device, values)
    if not values:
        return None
    value_of = {name: value for name, (value, _) in values.items()}
    return PcieState(
        value_of.get("max generation"),
        value_of.get("max width"),
        value_of.get("current generation"),
        value_of.get("current width"),
        tuple(line for _, line in values.values()),
    )


def _add_sysfs(view: DoctorView, device: Device, values: dict[str, tuple[int, str]]) -> None:
    for part, (speed_key, width_key) in _SYSFS_KEYS.items() if device.bus_id else ():
        subject = pci_subject(device.bus_id)
        generation = pcie_generation(view.facts.get_text(subject, speed_key))
        width = _check_width(view.facts.get_number(subject, width_key))
        if generation:
            values.setdefault(
                f"{part} generation", (generation, view.format_fact(subject, speed_key))
            )
        if width:
            values.setdefault(f"{part} width", (width, view.format_fact(subject, width_key)))


def _add_attributes(view: DoctorView, device: Device, values: dict[str, tuple[int, str]]) -> None:
    states = device.extra.get("pcie")
    for part in ("max", "current"):
        match = _STATE.fullmatch(str(states.get(part))) if isinstance(states, Mapping) else None
        if match and int(match[2]) in _WIDTHS:
            line = view.format_attribute(device, f"PCIe {part}", match[0])
            values.setdefault(f"{part} generation", (int(match[1]), line))
            values.setdefault(f"{part} width", (int(match[2]), line))
    speed, width = map(read_pci_details(device).get, ("link_speed", "link_width"))
    generation = pcie_generation(speed if isinstance(speed, str) else None)
    lanes = _check_width(parse_whole(width))
    if generation:
        values.setdefault(
            "max generation", (generation, view.format_attribute(device, "link_speed", speed))
        )
    if lanes:
        values.setdefault("max width", (lanes, view.format_attribute(device, "link_width", width)))


def _check_generation(value: int | None) -> int | None:
    return value if value is not None and value in PCIE_GTps else None


def _check_width(value: int | None) -> int | None:
    return value if value in _WIDTHS else None


_NVML_KEYS = {
    "max generation": (keys.GPU_PCIE_MAX_GENERATION, _check_generation),
    "max width": (keys.GPU_PCIE_MAX_WIDTH, _check_width),
    "current generation": (keys.GPU_PCIE_CURRENT_GENERATION, _check_generation),
    "current width": (keys.GPU_PCIE_CURRENT_WIDTH, _check_width),
}
_SYSFS_KEYS = {
    "max": (keys.PCI_MAX_LINK_SPEED, keys.PCI_MAX_LINK_WIDTH),
    "current": (keys.PCI_CURRENT_LINK_SPEED, keys.PCI_CURRENT_LINK_WIDTH),
}


def list_pcie_states(view: DoctorView) -> Iterator[tuple[Device, PcieState]]:
    """Yield each GPU, NIC and PCIe switch whose link is known, with the link's state."""
    for device in view.topology.devices:
        if device.kind in ("gpu", "nic") or device.family == "pcie":
            state = find_pcie_state(view, device)
            if state is not None:
                yield device, state


def find_nic_GBps(device: Device) -> Fraction | None:
    """Return the rate of a NIC's port in GB/s in one direction.

    Return None if it is unknown or impossible.
    """
    speed = parse_whole(device.extra.get("speed"))
    return Fraction(speed, 8000) if speed and 0 < speed <= MAX_NIC_Mbps else None


# -- checks


def check_placeholders(view: DoctorView) -> Iterator[Finding]:
    """Report links declared as 2.5 GT/s x1, a placeholder of virtual machines: a warning.

    NCCL then assumes 0.19 GB/s. A NIC that is no faster than that is not reported.
    """
    for _, about, evidence in view.group(
        (device.kind, (device.id,), state.evidence)
        for device, state in list_pcie_states(view)
        if is_placeholder(device, state)
    ):
        yield Finding(
            "warning",
            "placeholder-pcie",
            about,
            f"{join_names(about)}: PCIe declared as 2.5 GT/s x1, a placeholder; it caps rings at "
            f"{format_GBps(pcie_GBps(1, 1))}",
            evidence,
            "measure, or write the true speed and width into the file that NCCL is given "
            "(NCCL_TOPO_FILE)",
        )


def is_placeholder(device: Device, state: PcieState) -> bool:
    """Return whether a link is declared as 2.5 GT/s x1 though the device is faster."""
    if (state.generation, state.width) != (1, 1):
        return False
    rate, raw = find_nic_GBps(device), state.raw_GBps
    return device.kind != "nic" or (rate is not None and raw is not None and rate > raw)


def check_unknown_links(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs and NICs whose file gives a PCIe width of 0 or an invalid speed: a warning.

    No fact corrects these, so NCCL assumes Gen3 x16. A file that does not mention the link claims
    nothing.
    """
    cases: list[Case] = []
    for device in (*view.gpus, *view.nics):
        details, state = read_pci_details(device), find_pcie_state(view, device)
        valid = {
            "link_speed": state is not None and state.generation is not None,
            "link_width": state is not None and state.width is not None,
        }
        invalid = [key for key, is_valid in valid.items() if key in details and not is_valid]
        lines = [view.format_attribute(device, key, details[key]) for key in invalid]
        if lines:
            cases.append((" and ".join(invalid).replace("link_", ""), (device.id,), lines))
    for what, about, evidence in view.group(cases):
        yield Finding(
            "warning",
            "unknown-pcie",
            about,
            f"{join_names(about)}: PCIe {what} given as an invalid value; NCCL takes Gen3 x16 "
            "in its place",
            evidence,
            "measure, or write the true speed and width into the file that NCCL is given "
            "(NCCL_TOPO_FILE)",
        )


def check_uplinks(view: DoctorView) -> Iterator[Finding]:
    """Report PCIe switches with an implausibly old or narrow uplink: a warning.

    Such an uplink is Gen1 or Gen2 above GPUs or NICs of Gen3 or later, or has one PCIe lane above
    GPUs or NICs with more; no real switch has one. The switch is a virtual bridge, or the link
    trained wrongly (2.5 GT/s x1 is reported as a placeholder).
    """
    known = {device.id: state for device, state in list_pcie_states(view)}
    cases: list[Case] = []
    for ident, state in known.items():
        switch = view.topology.by_id[ident]
        if switch.kind != "switch" or is_placeholder(switch, state):
            continue
        below = _list_cards_below(view, ident, known)
        newest = max((x.generation or 0 for x in below), default=0)
        widest = max((x.width or 0 for x in below), default=0)
        is_old = (state.generation or _MODERN) <= _OLD and newest >= _MODERN
        if is_old or (state.width == 1 and widest > 1):
            rate = f"{float(PCIE_GTps[state.generation]):g} GT/s" if state.generation else ""
            cases.append(
                (
                    (rate, state.width, f"Gen{newest}" if is_old else f"{widest} lanes"),
                    (ident,),
                    state.evidence,
                )
            )
    for (rate, width, made_for), about, evidence in view.group(cases):
        yield Finding(
            "warning",
            "slow-uplink",
            about,
            f"{join_names(about)}: uplink declared as {rate}{f' x{width}' if width else ''} above "
            f"devices of {made_for}; NCCL counts it as it stands",
            evidence,
            "if it is a virtual machine, correct the file that NCCL is given; else look at the "
            "bridge with lspci -vv",
        )


def _list_cards_below(
    view: DoctorView, switch: str, known: Mapping[str, PcieState]
) -> list[PcieState]:
    """Return the known states of GPUs and NICs right below a switch or the switches below it."""

    def list_near(ident: str, *kinds: str) -> list[str]:
        near = view.topology.out_neighbours[ident]
        return [x for x in near if view.topology.by_id[x].kind in kinds]

    # A switch with a CPU is not below this one, but above it or on the same level.
    below = (x for x in list_near(switch, "switch") if not list_near(x, "cpu"))
    cards = [x for ident in (switch, *below) for x in list_near(ident, "gpu", "nic")]
    return [known[ident] for ident in cards if ident in known]


def check_widths(view: DoctorView) -> Iterator[Finding]:
    """Report devices that use fewer PCIe lanes than their maximum.

    It is a warning, or a note if it is a NIC that needs no more.
    """
    cases: list[Case] = []
    for device, state in list_pcie_states(view):
        if state.width and state.now_width and state.now_width < state.width:
            rate, raw = find_nic_GBps(device), state.raw_GBps
            served = device.kind == "nic" and rate is not None and raw is not None and rate <= raw
            cases.append(((served, state.now_width, state.width), (device.id,), state.evidence))
    for (served, now, full), about, evidence in view.group(cases):
        yield Finding(
            "note" if served else "warning",
            "narrow-pcie",
            about,
            f"{join_names(about)}: {now} of {full} PCIe lanes at work, "
            + ("enough for its port" if served else f"so it carries {now}/{full} of what it could"),
            evidence,
            "reseat the card or riser; check that the slot has all lanes wired and how the BIOS "
            "splits it",
        )


def check_generations(view: DoctorView) -> Iterator[Finding]:
    """Report devices whose PCIe generation in use is older than their maximum: a note.

    It may be harmless, since idle devices clock down.
    """
    for (now, full), about, evidence in view.group(
        ((state.now_generation, state.generation), (device.id,), state.evidence)
        for device, state in list_pcie_states(view)
        if state.generation and state.now_generation and state.now_generation < state.generation
    ):
        yield Finding(
            "note",
            "slow-pcie-now",
            about,
            f"{join_names(about)}: PCIe at Gen{now} now, made for Gen{full}; devices clock down "
            "while idle",
            evidence,
            "look again under load",
        )


def check_like_gpus(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs whose PCIe link carries less than the best of the model: a warning.

    At least half must have the best. Generation and PCIe lanes in use are compared if they are
    known for all of them, else the bandwidth of PCIe links. Devices that another check of this file
    reports are left out.
    """
    named = {
        ident
        for check in (check_placeholders, check_unknown_links, check_widths)
        for f in check(view)
        for ident in f.about
    }
    for group in view.like_gpus:
        known = {gpu.id: find_pcie_state(view, gpu) for gpu in group}
        by_state = all(state is not None and state.raw_GBps is not None for state in known.values())
        rates = {
            ident: _find_state_rate(state) if by_state else _sum_link_rates(view, ident)
            for ident, state in known.items()
        }
        best = max(rates.values(), default=Fraction(0))
        if 2 * sum(rate == best for rate in rates.values()) < len(rates):
            continue
        fast = next((ident for ident, rate in rates.items() if rate == best), "")
        cases: Iterator[Case] = (
            (
                _format_rate(state, rates[ident], by_state),
                (ident,),
                state.evidence if by_state and state else _list_link_lines(view, ident),
            )
            for ident, state in known.items()
            if 0 < rates[ident] < best and ident not in named
        )
        for rate_text, about, evidence in view.group(cases):
            yield Finding(
                "warning",
                "uneven-pcie",
                about,
                f"{join_names(about)}: PCIe at {rate_text}, where like GPUs such as {fast} have "
                f"{_format_rate(known[fast], best, by_state)}",
                evidence,
                "move it to a slot like those of its peers, or give it the smaller share of the "
                "traffic",
            )


def _find_state_rate(state: PcieState | None) -> Fraction:
    return (state.raw_GBps if state else None) or Fraction(0)


def _format_rate(state: PcieState | None, rate: Fraction, by_state: bool) -> str:
    return f"Gen{state.generation} x{state.lanes}" if by_state and state else format_GBps(rate)


def _sum_link_rates(view: DoctorView, ident: str) -> Fraction:
    return sum(
        (x.bandwidth_GBps for x in view.links_from.get(ident, ()) if x.kind == "pcie"), Fraction(0)
    )


def _list_link_lines(view: DoctorView, ident: str) -> list[str]:
    return [view.format_link(x) for x in view.links_from.get(ident, ()) if x.kind == "pcie"]


def _knows_states(view: DoctorView) -> bool:
    return any(list_pcie_states(view)) or any(
        read_pci_details(d).keys() & {"link_speed", "link_width"} for d in view.topology.devices
    )


def _knows_current_states(view: DoctorView) -> bool:
    return any(state.now_width or state.now_generation for _, state in list_pcie_states(view))


# The checks of this file.
CHECKS = (
    Check("PCIe placeholders", check_placeholders, _knows_states, "no PCIe speeds and widths"),
    Check(
        "invalid PCIe speeds and widths",
        check_unknown_links,
        _knows_states,
        "no PCIe speeds and widths",
    ),
    Check("PCIe uplinks", check_uplinks, _knows_states, "no PCIe speeds and widths"),
    Check(
        "PCIe lanes at work",
        check_widths,
        _knows_current_states,
        "no current PCIe speeds and widths",
    ),
    Check(
        "PCIe generation at work",
        check_generations,
        _knows_current_states,
        "no current PCIe speeds and widths",
    ),
    Check(
        "PCIe of like GPUs",
        check_like_gpus,
        lambda view: has_two_gpus(view) and any(x.kind == "pcie" for x in view.topology.links),
        "no GPUs to compare over PCIe",
    ),
)
