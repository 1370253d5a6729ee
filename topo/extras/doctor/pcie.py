"""Checks of PCI Express links: impossible declarations, and devices below full width or rate.

A check takes a DoctorView (the topology, and the facts that a probe read of the machine) and yields
a Finding for each problem; the doctor makes those in `CHECKS`. A placeholder is a speed and width
that a virtual machine shows instead of the real ones. Like GPUs are those of one model.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction

from ...exact import parse_positive
from ...facts import keys
from ...facts.keys import gpu_subject
from ...facts.view import read_pci_details
from ...graph import Device, Link
from ...grouping import group_by_key
from ...hardware import PCIE_GTps, pcie_GBps
from .view import (
    MODERN,
    Case,
    Check,
    DoctorView,
    Finding,
    PcieState,
    find_nic_GBps,
    format_GBps,
    has_two_gpus,
    join_names,
)

# A GPU with as much utilization is at work: chosen, since one that wakes up shows a few percent.
_BUSY_percent = 50

# NCCL's rate of 2.5 GT/s x1, and what its log prints of it.
_PLACEHOLDER_GBps = (pcie_GBps(1, 1), Fraction(2, 10))

# What NCCL takes for a speed or a width that is not known.
_IN_PLACE = {"speed": "Gen3", "width": "x16"}
# The PCIe rate of each GPU in GB/s, with the words and the evidence for it.
_Compared = Mapping[str, tuple[Fraction, str, Collection[str]]]


def check_placeholders(view: DoctorView) -> Iterator[Finding]:
    """Report links declared as 2.5 GT/s x1, a placeholder of virtual machines: a warning.

    NCCL then assumes 0.19 GB/s; a link whose only known fact is that rate is reported, too.
    Exceptions: a NIC that is no faster than that; a GPU with NVLink-C2C, which NCCL uses instead,
    or of a board with it (GB10 declares that it is x1).
    """
    with_c2c = {link.src for link in view.topology.links if link.kind == "c2c"}
    with_c2c |= {
        gpu.id
        for gpu in view.gpus
        if (board := view.find_board(gpu.id)) is not None and board.c2c_GBps
    }
    declared = (
        ((state.device.kind, "declared as"), (ident,), state.evidence)
        for ident, state in view.pcie_states.items()
        if state.is_placeholder and ident not in with_c2c
    )
    counted = (
        ((view.topology.by_id[link.src].kind, "counted as"), (link.src,), (view.format_link(link),))
        for link in _list_counted_placeholders(view)
        if link.src not in with_c2c
    )
    for (_, how), about, evidence in view.group((*declared, *counted)):
        yield Finding(
            "warning",
            "placeholder-pcie",
            about,
            f"{join_names(about)}: PCIe {how} 2.5 GT/s x1, a placeholder; it caps rings at "
            f"{format_GBps(pcie_GBps(1, 1))}",
            evidence,
            "measure, or write the true speed and width into the file that NCCL is given "
            "(NCCL_TOPO_FILE); topo-probe writes one for virtual machines (for_vm)",
        )


def _list_counted_placeholders(view: DoctorView) -> Iterator[Link]:
    """Yield the links to what is above of devices whose rate in NCCL's model is a placeholder's.

    Those of a known speed and width are left out.
    """
    by_id, depth = view.topology.by_id, _find_depths(view)
    for link in view.topology.links:
        device = by_id[link.src]
        is_up = depth.get(link.src, 0) > depth.get(link.dst, 0)
        rate = link.bandwidth_GBps if _is_counted(link) else None
        if rate in _PLACEHOLDER_GBps and is_up and link.src not in view.pcie_states:
            port = find_nic_GBps(device) or parse_positive(device.extra.get("net_speed_GBps"))
            if device.kind != "nic" or (port is not None and port > pcie_GBps(1, 1)):
                yield link


def _is_counted(link: Link) -> bool:
    return link.kind == "pcie" and bool(link.counted_by)


def _find_depths(view: DoctorView) -> Mapping[str, int]:
    """Return the number of PCIe links between each device and the nearest CPU."""
    near = group_by_key((x.src, x.dst) for x in view.topology.links if x.kind == "pcie")
    depth = {device.id: 0 for device in view.topology.devices if device.kind == "cpu"}
    level = list(depth)
    while level:
        below = dict.fromkeys(end for ident in level for end in near.get(ident, ()))
        level = [ident for ident in below if ident not in depth]
        depth |= dict.fromkeys(level, max(depth.values()) + 1)
    return depth


def check_unknown_links(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs and NICs whose file gives a PCIe width of 0 or an invalid speed: a warning.

    No fact corrects these, so NCCL assumes Gen3, or 16 lanes. A file that does not mention the link
    claims nothing.
    """
    cases: list[Case] = []
    for device in (*view.gpus, *view.nics):
        details, state = read_pci_details(device), view.pcie_states.get(device.id)
        known = (state.generation, state.width) if state else (None, None)
        invalid = {
            word: view.format_attribute(device, f"link_{word}", details[f"link_{word}"])
            for word, value in zip(("speed", "width"), known, strict=True)
            if f"link_{word}" in details and value is None
        }
        if invalid:
            cases.append((tuple(invalid), (device.id,), invalid.values()))
    for words, about, evidence in view.group(cases):
        yield Finding(
            "warning",
            "unknown-pcie",
            about,
            f"{join_names(about)}: PCIe {' and '.join(words)} given as an invalid value; NCCL "
            f"takes {' '.join(_IN_PLACE[word] for word in words)} in its place",
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
    cases: list[Case] = []
    for ident, state in view.pcie_states.items():
        if state.device.kind != "switch" or state.is_placeholder:
            continue
        below = _list_cards_below(view, ident)
        newest = max((x.generation or 0 for x in below), default=0)
        widest = max((x.width or 0 for x in below), default=0)
        is_old = (state.generation or MODERN) < MODERN <= newest
        if is_old or (state.width == 1 and widest > 1):
            rate = f"{float(PCIE_GTps[state.generation]):g} GT/s" if state.generation else ""
            made_for = f"Gen{newest}" if is_old else f"{widest} lanes"
            cases.append(((rate, state.width, made_for), (ident,), state.evidence))
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


def _list_cards_below(view: DoctorView, switch: str) -> list[PcieState]:
    """Return the known states of GPUs and NICs right below a switch or the switches below it."""

    def list_near(ident: str, *kinds: str) -> list[str]:
        return [
            x for x in view.topology.out_neighbours[ident] if view.topology.by_id[x].kind in kinds
        ]

    # A switch with a CPU is not below this one, but above it or on the same level.
    below = (x for x in list_near(switch, "switch") if not list_near(x, "cpu"))
    return [
        view.pcie_states[x]
        for ident in (switch, *below)
        for x in list_near(ident, "gpu", "nic")
        if x in view.pcie_states
    ]


def check_widths(view: DoctorView) -> Iterator[Finding]:
    """Report devices that use fewer PCIe lanes than their maximum.

    It is a warning, or a note if it is a NIC that needs no more.
    """
    for (served, now, full), about, evidence in view.group(
        ((state.serves_port, state.now_width, state.width), (ident,), state.evidence)
        for ident, state in view.pcie_states.items()
        if state.width and state.now_width and state.now_width < state.width
    ):
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

    It may be harmless, since idle devices clock down. GPUs at work do not, so for those, by the
    fact `utilization`, it is a warning.
    """
    for (now, full, is_busy), about, evidence in view.group(
        (
            (state.now_generation, state.generation, busy is not None),
            (ident,),
            (*state.evidence, *([busy] if busy is not None else [])),
        )
        for ident, state in view.pcie_states.items()
        if state.generation and state.now_generation and state.now_generation < state.generation
        for busy in [_format_utilization(view, ident)]
    ):
        yield Finding(
            "warning" if is_busy else "note",
            "slow-pcie-now",
            about,
            f"{join_names(about)}: PCIe at Gen{now} now, made for Gen{full}"
            + (", and at work" if is_busy else "; devices clock down while idle"),
            evidence,
            "reseat the card or riser; check the slot's generation in the BIOS and the kernel log "
            "for PCIe errors (AER)"
            if is_busy
            else "look again under load",
        )


def _format_utilization(view: DoctorView, ident: str) -> str | None:
    """Return the evidence that a GPU is at work; None if it is not, or nothing tells."""
    subject = gpu_subject(view.index_of.get(ident))
    percent = view.facts.get_number(subject, keys.GPU_UTILIZATION)
    is_busy = percent is not None and percent >= _BUSY_percent
    return view.format_fact(subject, keys.GPU_UTILIZATION) if is_busy else None


def check_like_gpus(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs whose PCIe link carries less than the best of the model: a warning.

    At least half must have the best. Generation and PCIe lanes in use are compared if they are
    known for all of them, else the bandwidth of PCIe links that is not only assumed. Devices that
    `check_placeholders`, `check_unknown_links` or `check_widths` reports are left out.
    """
    named = {
        ident
        for check in (check_placeholders, check_unknown_links, check_widths)
        for f in check(view)
        for ident in f.about
    }
    for group in view.like_gpus:
        compared = _compare_states(view, group) or _compare_links(view, group)
        if not compared:
            continue
        best, best_text, _ = max(compared.values(), key=lambda compared_gpu: compared_gpu[0])
        fast = [ident for ident, (rate, _, _) in compared.items() if rate == best]
        if 2 * len(fast) < len(compared):
            continue
        for rate_text, about, evidence in view.group(
            (text, (ident,), lines)
            for ident, (rate, text, lines) in compared.items()
            if 0 < rate < best and ident not in named
        ):
            yield Finding(
                "warning",
                "uneven-pcie",
                about,
                f"{join_names(about)}: PCIe at {rate_text}, where like GPUs such as {fast[0]} "
                f"have {best_text}",
                evidence,
                "move it to a slot like those of its peers, or give it the smaller share of the "
                "traffic",
            )


def _compare_states(view: DoctorView, gpus: Sequence[Device]) -> _Compared:
    """Return the rates of the PCIe lanes in use, empty if one of them is unknown."""
    compared = {
        gpu.id: (state.raw_GBps, f"Gen{state.generation} x{state.lanes}", state.evidence)
        for gpu in gpus
        if (state := view.pcie_states.get(gpu.id)) is not None and state.raw_GBps is not None
    }
    return compared if len(compared) == len(gpus) else {}


def _compare_links(view: DoctorView, gpus: Sequence[Device]) -> _Compared:
    links = {
        gpu.id: [x for x in view.links_from.get(gpu.id, ()) if x.kind == "pcie"] for gpu in gpus
    }
    rates = {
        ident: sum((x.bandwidth_GBps for x in of_gpu), Fraction(0))
        for ident, of_gpu in links.items()
    }
    return {
        ident: (rates[ident], format_GBps(rates[ident]), [view.format_link(x) for x in of_gpu])
        for ident, of_gpu in links.items()
        if not any(link.is_assumed for link in of_gpu)
    }


def _knows_states(view: DoctorView) -> bool:
    return bool(view.pcie_states) or any(
        read_pci_details(d).keys() & {"link_speed", "link_width"} for d in view.topology.devices
    )


def _knows_current_states(view: DoctorView) -> bool:
    return any(state.now_width or state.now_generation for state in view.pcie_states.values())


# The checks of this file.
CHECKS = (
    Check(
        "PCIe placeholders",
        check_placeholders,
        lambda view: _knows_states(view) or any(map(_is_counted, view.topology.links)),
        "no PCIe speeds and widths",
    ),
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
