"""What the doctor asks of PCI Express links: whether what is declared can be true, and whether devices get what they could.

A link's state is put together from the facts of NVML and sysfs, from `extra["pcie"]` ("Gen4 x16", of the probe) and from
`extra["pci"]` (an NCCL XML file, where the figures are those that the parts are made for).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from ..graph import Device
from ..hardware import PCIE_GTps, pcie_GBps, pcie_generation
from .case import Case, Check, Finding, Grouped, gbps, names, pci, whole

_TOLD = re.compile(r"Gen([1-6]) x([0-9]{1,2})")
_WIDTHS = range(1, 33)
_OLD, _MODERN = 2, 3


@dataclass(frozen=True)
class PcieState:
    """Generation and lanes that a device's link is made for and that it has now; None where that is not known."""

    generation: int | None
    width: int | None
    now_generation: int | None
    now_width: int | None
    evidence: tuple[str, ...]

    @property
    def lanes(self) -> int | None:
        """The lanes at work: those now if they are known."""
        return self.now_width or self.width

    @property
    def raw_GBps(self) -> Fraction | None:
        """GB/s in one direction on the lanes at work at the generation it is made for, before packet headers: the
        transfer rate after 8b/10b coding (Gen1 and 2) or 128b/130b (later) of the PCI Express base specifications.
        """
        if self.generation is None or self.lanes is None:
            return None
        coding = Fraction(8, 10) if self.generation <= _OLD else Fraction(128, 130)
        return PCIE_GTps[self.generation] * coding * self.lanes / 8


def pcie_state(case: Case, device: Device) -> PcieState | None:
    """What is known of a device's own PCIe link, None where nothing is. NVML's word counts before sysfs' and the file's."""
    if device.id not in case.found_before:
        case.found_before[device.id] = _found_state(case, device)
    state: PcieState | None = case.found_before[device.id]
    return state


def _found_state(case: Case, device: Device) -> PcieState | None:
    found: dict[str, tuple[int, str]] = {}
    index = case.number_of.get(device.id)
    for part in ("max", "current"):
        for key, read in (("generation", _generation), ("width", _width)):
            subject = f"gpu/{index}"
            value = read(case.facts.number(subject, f"pcie_{part}_{key}")) if index is not None else None
            if value:
                found[f"{part} {key}"] = value, case.fact(subject, f"pcie_{part}_{key}")
    _add_sysfs(case, device, found)
    _add_told(case, device, found)
    if not found:
        return None
    value_of = {key: value for key, (value, _) in found.items()}
    return PcieState(
        value_of.get("max generation"),
        value_of.get("max width"),
        value_of.get("current generation"),
        value_of.get("current width"),
        tuple(line for _, line in found.values()),
    )


def _add_sysfs(case: Case, device: Device, found: dict[str, tuple[int, str]]) -> None:
    for part in ("max", "current") if device.bus_id else ():
        subject = f"pci/{device.bus_id}"
        generation = pcie_generation(case.facts.text(subject, f"{part}_link_speed"))
        width = _width(case.facts.number(subject, f"{part}_link_width"))
        if generation:
            found.setdefault(f"{part} generation", (generation, case.fact(subject, f"{part}_link_speed")))
        if width:
            found.setdefault(f"{part} width", (width, case.fact(subject, f"{part}_link_width")))


def _add_told(case: Case, device: Device, found: dict[str, tuple[int, str]]) -> None:
    told = device.extra.get("pcie")
    for part in ("max", "current"):
        match = _TOLD.fullmatch(str(told.get(part))) if isinstance(told, Mapping) else None
        if match and int(match[2]) in _WIDTHS:
            line = case.said(device, f"PCIe {part}", match[0])
            found.setdefault(f"{part} generation", (int(match[1]), line))
            found.setdefault(f"{part} width", (int(match[2]), line))
    speed, width = pci(device).get("link_speed"), pci(device).get("link_width")
    generation, lanes = pcie_generation(speed if isinstance(speed, str) else None), _width(whole(width))
    if generation:
        found.setdefault("max generation", (generation, case.said(device, "link_speed", speed)))
    if lanes:
        found.setdefault("max width", (lanes, case.said(device, "link_width", width)))


def _generation(value: int | None) -> int | None:
    return value if value is not None and value in PCIE_GTps else None


def _width(value: int | None) -> int | None:
    return value if value in _WIDTHS else None


def states(case: Case) -> Iterator[tuple[Device, PcieState]]:
    """Every GPU, NIC and PCIe switch of whose link something is known."""
    for device in case.topology.devices:
        if device.kind in ("gpu", "nic") or device.family == "pcie":
            state = pcie_state(case, device)
            if state is not None:
                yield device, state


def nic_GBps(device: Device) -> Fraction | None:
    """The rate of a NIC's port in one direction, None where it is not known."""
    speed = whole(device.extra.get("speed"))
    return Fraction(speed, 8000) if speed and speed > 0 else None


# -- checks -------------------------------------------------------------------------------------------------------------


def placeholders(case: Case) -> Iterator[Finding]:
    """A declared 2.5 GT/s x1, which virtual machines put in place of the truth (NCCL then counts 0.19 GB/s). A NIC that
    is no faster than that may mean it.
    """
    found = Grouped(case)
    for device, state in states(case):
        if is_placeholder(device, state):
            found.add(device.kind, (device.id,), state.evidence)
    for _, about, evidence in found:
        message = (
            f"{names(about)}: PCIe declared as 2.5 GT/s x1, a placeholder; it caps rings at {gbps(pcie_GBps(1, 1))}"
        )
        advice = "measure, or write the true speed and width into the file that NCCL is given (NCCL_TOPO_FILE)"
        yield Finding("warning", "placeholder-pcie", about, message, evidence, advice)


def is_placeholder(device: Device, state: PcieState) -> bool:
    """Whether a link is declared as 2.5 GT/s x1 though the device cannot be meant for that."""
    if (state.generation, state.width) != (1, 1):
        return False
    rate, raw = nic_GBps(device), state.raw_GBps
    return device.kind != "nic" or (rate is not None and raw is not None and rate > raw)


def unknown_links(case: Case) -> Iterator[Finding]:
    """GPUs and NICs whose PCIe link is given as width 0 or with a speed that is none, and of which nobody else says it.
    (A link that is not mentioned at all is not claimed to be anything.) NCCL takes these as Gen3 x16.
    """
    found = Grouped(case)
    for device in (*case.gpus, *case.nics):
        told, state = pci(device), pcie_state(case, device)
        lines = []
        if "link_speed" in told and (state is None or state.generation is None):
            lines.append(case.said(device, "link_speed", told["link_speed"]))
        if "link_width" in told and (state is None or state.width is None):
            lines.append(case.said(device, "link_width", told["link_width"]))
        if lines:
            found.add(tuple(line.split(" ")[1] for line in lines), (device.id,), lines)
    for keys, about, evidence in found:
        lacking = " and ".join(key.replace("link_", "") for key in keys)
        message = f"{names(about)}: PCIe {lacking} given as a value that is none; NCCL takes Gen3 x16 in its place"
        advice = "measure, or write the true speed and width into the file that NCCL is given (NCCL_TOPO_FILE)"
        yield Finding("warning", "unknown-pcie", about, message, evidence, advice)


def slow_uplinks(case: Case) -> Iterator[Finding]:
    """A PCIe switch that declares Gen1 or Gen2 to the CPU with GPUs or NICs of Gen3 or later below: no such switch is
    sold, so it is a virtual bridge's invention, or a link that trained wrongly (2.5 GT/s x1 is told as placeholder).
    """
    known = {device.id: state for device, state in states(case)}
    found = Grouped(case)
    for ident, state in known.items():
        switch = case.topology.by_id[ident]
        if switch.kind != "switch" or (state.generation or _MODERN) > _OLD or is_placeholder(switch, state):
            continue
        below = (
            known[x]
            for x in case.topology.out_neighbours[ident]
            if case.topology.by_id[x].kind in ("gpu", "nic") and x in known
        )
        newest = max((x.generation or 0 for x in below), default=0)
        if newest >= _MODERN:
            rate = f"{float(PCIE_GTps[state.generation or _OLD]):g} GT/s"
            found.add((rate, state.width, newest), (ident,), state.evidence)
    for (rate, width, newest), about, evidence in found:
        lanes = f" x{width}" if width else ""
        message = f"{names(about)}: uplink declared as {rate}{lanes} above devices of Gen{newest}; NCCL counts it as it stands"
        advice = (
            "if it is a virtual machine, correct the file that NCCL is given; else look at the bridge with lspci -vv"
        )
        yield Finding("warning", "slow-uplink", about, message, evidence, advice)


def narrow_links(case: Case) -> Iterator[Finding]:
    """Fewer lanes at work than the device is made for: a warning, and a note for a NIC that its lanes still serve."""
    found = Grouped(case)
    for device, state in states(case):
        if state.width and state.now_width and state.now_width < state.width:
            rate, raw = nic_GBps(device), state.raw_GBps
            served = device.kind == "nic" and rate is not None and raw is not None and rate <= raw
            found.add((served, state.now_width, state.width), (device.id,), state.evidence)
    for (served, now, made), about, evidence in found:
        costs = "enough for its port" if served else f"so that it carries {now}/{made} of what it could"
        message = f"{names(about)}: {now} of {made} PCIe lanes at work, {costs}"
        advice = "reseat the card or riser; check that the slot has all lanes wired and how the BIOS splits it"
        yield Finding("note" if served else "warning", "narrow-pcie", about, message, evidence, advice)


def slow_links_now(case: Case) -> Iterator[Finding]:
    """An older generation now than the device is made for: only a note, since idle devices clock down."""
    found = Grouped(case)
    for device, state in states(case):
        if state.generation and state.now_generation and state.now_generation < state.generation:
            found.add((state.now_generation, state.generation), (device.id,), state.evidence)
    for (now, made), about, evidence in found:
        message = f"{names(about)}: PCIe at Gen{now} now, made for Gen{made}; devices clock down while idle"
        yield Finding("note", "slow-pcie-now", about, message, evidence, "look again under load")


def uneven_gpus(case: Case) -> Iterator[Finding]:
    """A GPU whose PCIe link carries less than that of its like, where at least half of these have the best; by generation
    and lanes at work if they are known of all, else by the bandwidth of its PCIe links. Devices that another check of
    this file names are left out.
    """
    named = {ident for check in (placeholders, unknown_links, narrow_links) for f in check(case) for ident in f.about}
    for group in case.like_gpus:
        known = {gpu.id: pcie_state(case, gpu) for gpu in group}
        by_state = all(state is not None and state.raw_GBps is not None for state in known.values())
        rates = {ident: _state_rate(state) if by_state else _link_rate(case, ident) for ident, state in known.items()}
        best = max(rates.values(), default=Fraction(0))
        if 2 * sum(rate == best for rate in rates.values()) < len(rates):
            continue
        fast = next((ident for ident, rate in rates.items() if rate == best), "")
        found = Grouped(case)
        for ident, rate in rates.items():
            state = known[ident]
            if 0 < rate < best and ident not in named:
                found.add(
                    _said(state, rate, by_state),
                    (ident,),
                    state.evidence if by_state and state else _link_lines(case, ident),
                )
        for said, about, evidence in found:
            better = _said(known[fast], best, by_state)
            message = f"{names(about)}: PCIe at {said}, where like GPUs such as {fast} have {better}"
            advice = "move it to a slot like those of its peers, or give it the smaller share of the traffic"
            yield Finding("warning", "uneven-pcie", about, message, evidence, advice)


def _state_rate(state: PcieState | None) -> Fraction:
    return (state.raw_GBps if state else None) or Fraction(0)


def _said(state: PcieState | None, rate: Fraction, by_state: bool) -> str:
    return f"Gen{state.generation} x{state.lanes}" if by_state and state else gbps(rate)


def _link_rate(case: Case, ident: str) -> Fraction:
    """GB/s of a GPU's PCIe links together."""
    return sum((x.bandwidth_GBps for x in case.links_from.get(ident, ()) if x.kind == "pcie"), Fraction(0))


def _link_lines(case: Case, ident: str) -> list[str]:
    return [case.link(x) for x in case.links_from.get(ident, ()) if x.kind == "pcie"]


def _wants_states(case: Case) -> str | None:
    told = any(pci(d).keys() & {"link_speed", "link_width"} for d in case.topology.devices)
    return None if told or next(states(case), None) else "no PCIe speeds and widths"


def _wants_current(case: Case) -> str | None:
    known = any(state.now_width or state.now_generation for _, state in states(case))
    return None if known else "no current PCIe speeds and widths"


def _wants_peers(case: Case) -> str | None:
    has_pcie = any(link.kind == "pcie" for link in case.topology.links)
    return None if has_pcie and len(case.gpus) > 1 else "no GPUs to compare over PCIe"


CHECKS = (
    Check("PCIe placeholders", placeholders, _wants_states),
    Check("PCIe speeds and widths that are none", unknown_links, _wants_states),
    Check("PCIe uplinks", slow_uplinks, _wants_states),
    Check("PCIe lanes at work", narrow_links, _wants_current),
    Check("PCIe generation at work", slow_links_now, _wants_current),
    Check("PCIe of like GPUs", uneven_gpus, _wants_peers),
)
"""The checks of this file."""
