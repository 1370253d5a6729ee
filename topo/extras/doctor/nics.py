"""Checks of NICs: inactive ports, unequal or impossible speeds, and slow PCIe slots.

A check takes a DoctorView (the topology, and the facts that a probe read of the machine) and yields
a Finding for each problem; the doctor makes those in `CHECKS`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from ...facts import keys
from ...facts.keys import NET, RDMA, net_subject, rdma_subject
from ...facts.view import read_pci_details
from ...graph import Device
from .view import (
    Check,
    DoctorView,
    Finding,
    MAX_NIC_Mbps,
    find_nic_GBps,
    format_GBps,
    join_names,
    parse_whole,
)

_NOT_AT_WORK = re.compile(
    r"(?:\d+: *)?(?:down|init|armed|active_defer|lowerlayerdown|notpresent|testing|dormant|"
    r"disabled|polling|inactive)"
)
# Ports below 25 Gb/s are for management if there are faster ones.
MIN_DATA_GBps = Fraction(25, 8)
_STEM = re.compile(r"[a-z]+\d*_|[a-z]+", re.IGNORECASE)


def check_ports(view: DoctorView) -> Iterator[Finding]:
    """Report NICs whose port is not active.

    It is a warning if the NIC may carry GPU traffic, and a note for a plain network interface,
    since machines have spare ones. Unknown port states are ignored.
    """
    interfaces = {*view.facts.list_names(NET)} - {*view.facts.list_names(RDMA)}
    for (plain, state), about, evidence in view.group(
        ((nic.id in interfaces, state.split(":")[-1].strip()), (nic.id,), (line,))
        for nic in view.nics
        for state, line in [_find_state(view, nic)]
        if _NOT_AT_WORK.fullmatch(state)
    ):
        yield Finding(
            "note" if plain else "warning",
            "nic-down",
            about,
            f"{join_names(about)}: the port is {state}, so it carries nothing",
            evidence,
            "check cable, switch port and subnet manager (ibstat, ethtool)",
        )


def _find_state(view: DoctorView, nic: Device) -> tuple[str, str]:
    for subject, key in (
        (rdma_subject(nic.id), keys.RDMA_STATE),
        (net_subject(nic.id), keys.NET_STATE),
    ):
        text = view.facts.get_text(subject, key)
        if text is not None:
            return text.strip().lower(), view.format_fact(subject, key)
    state = nic.extra.get("state")
    return str(state).strip().lower() if state else "", view.format_attribute(nic, "state", state)


def list_data_nics(view: DoctorView) -> tuple[Device, ...]:
    """Return the NICs that GPU traffic may take.

    NICs for management, slower than 25 Gb/s or without GPUDirect (`gdr` is 0 in their `extra`, from
    NCCL's XML), do not count unless there are no others. A NIC of unknown speed counts.
    """
    able = [nic for nic in view.nics if parse_whole(nic.extra.get("gdr")) != 0] or view.nics
    return tuple(
        nic for nic in able if (find_nic_GBps(nic) or MIN_DATA_GBps) >= MIN_DATA_GBps
    ) or tuple(able)


def check_nic_speeds(view: DoctorView) -> Iterator[Finding]:
    """Report NICs slower than the fastest of their model: a warning.

    A model is a PCI vendor and device, or else the letters of a name (mlx5_0 and mlx5_1 are equal).
    NICs that are down are not compared.
    """
    sorts: dict[str, list[Device]] = defaultdict(list)
    for nic in view.nics:
        if find_nic_GBps(nic) is not None and not _NOT_AT_WORK.fullmatch(_find_state(view, nic)[0]):
            stem = _STEM.match(str(nic.extra.get("name") or nic.id).rpartition("/")[2])
            model = (read_pci_details(nic).get("vendor"), read_pci_details(nic).get("device"))
            sorts[str(model) if all(model) else stem.group() if stem else nic.id].append(nic)
    for nics in sorts.values():
        rates = {nic.id: find_nic_GBps(nic) or 0 for nic in nics}
        best = max(rates.values())
        slow = tuple(ident for ident, rate in rates.items() if rate < best)
        fast = tuple(ident for ident, rate in rates.items() if rate == best)
        if slow:
            yield Finding(
                "warning",
                "uneven-nics",
                slow,
                f"{join_names(slow)}: slower than {join_names(fast)}, which are of the same sort "
                f"({format_GBps(best)})",
                tuple(
                    view.format_attribute(nic, "speed", f"{nic.extra['speed']} Mb/s")
                    for nic in nics
                ),
                "check the cable, the switch port and the negotiated speed (ibstat, ethtool)",
            )


def check_possible_speeds(view: DoctorView) -> Iterator[Finding]:
    """Report NICs whose declared speed no existing NIC reaches: a warning.

    The figure is in other units, or from a driver that guesses.
    """
    for speed, about, evidence in view.group(
        (speed, (nic.id,), (view.format_attribute(nic, "speed", f"{nic.extra['speed']} Mb/s"),))
        for nic in view.nics
        if (speed := parse_whole(nic.extra.get("speed")) or 0) > MAX_NIC_Mbps
    ):
        yield Finding(
            "warning",
            "impossible-nic-rate",
            about,
            f"{join_names(about)}: {speed} Mb/s, more than any NIC carries ({MAX_NIC_Mbps} Mb/s)",
            evidence,
            "correct the speed, which is in Mb/s (400 Gb/s are 400000), or measure it",
        )


def check_nic_slots(view: DoctorView) -> Iterator[Finding]:
    """Report NICs whose port is faster than their PCIe link: a warning.

    The link's rate is taken before packet headers: 200 Gb/s on Gen3 x8 is reported, 100 Gb/s on
    Gen3 x16 is not. Links declared as 2.5 GT/s x1, a placeholder, are reported by another check. On
    machines whose GPUs are all GB10 nothing is reported: their NICs have half the lanes by design.
    """
    for (rate, slot, raw), about, evidence in view.group(
        (
            (find_nic_GBps(nic), f"Gen{state.generation} x{state.lanes}", state.raw_GBps),
            (nic.id,),
            (
                view.format_attribute(nic, "speed", f"{nic.extra['speed']} Mb/s"),
                *state.evidence,
            ),
        )
        for nic in view.nics
        if (state := view.pcie_states.get(nic.id)) is not None
        and state.is_below_port
        and not state.is_placeholder
        and not view.has_soldered_nics
    ):
        yield Finding(
            "warning",
            "nic-above-pcie",
            about,
            f"{join_names(about)}: a port of {format_GBps(rate)} behind PCIe {slot}, which carries "
            f"{format_GBps(raw)} at most",
            evidence,
            "move the NIC to a wider or newer slot, or count on the slot's rate",
        )


# The checks of this file.
CHECKS = (
    Check(
        "NIC ports",
        check_ports,
        lambda view: any(_find_state(view, nic)[0] for nic in view.nics),
        "no states of NIC ports",
    ),
    Check(
        "NIC speeds",
        check_nic_speeds,
        lambda view: any(find_nic_GBps(nic) for nic in view.nics),
        "no speeds of NICs",
    ),
    Check(
        "possible speeds of NICs",
        check_possible_speeds,
        lambda view: any(parse_whole(nic.extra.get("speed")) for nic in view.nics),
        "no speeds of NICs",
    ),
    Check(
        "NICs and their slots",
        check_nic_slots,
        lambda view: any(find_nic_GBps(nic) and nic.id in view.pcie_states for nic in view.nics),
        "no speeds and slots of NICs",
    ),
)
