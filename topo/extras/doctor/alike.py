"""Hosts compared with each other, or with one that says how they should be.

Hosts of one cluster are bought alike, so what one of them lacks is missing there. Without a
reference what most hosts have counts, and of two hosts the better; that is a warning, since hosts
may differ on purpose. With a reference, GPUs and NICs that are missing are errors.

Devices are not matched one to one: names and numbers shift where a GPU is lost. The numbers of
like devices and links are compared instead, which no numbering changes. A difference becomes a
Finding, as a problem that a check of the doctor finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import TypeVar

from ...derived.parts import split_hosts
from ...devices import Device
from ...errors import InputError
from ...facts import Facts, keys, load_facts
from ...facts.keys import CPUINFO, HOST, NVML, Key, qualify
from ...graph import Topology
from ...grouping import group_by_key
from ...names import pick_unused_name
from .view import DoctorView, Finding, Severity, find_nic_GBps, format_GBps, join_names, shorten

# Share of the rate of like links from which a link is as fast: measured rates vary by as much.
_AS_FAST = Fraction(9, 10)
# Hosts that a message names where it says who has what most have.
_MAX_OTHERS = 2
# Facts that like hosts share: subject, key, severity of a difference, kind of the finding, words.
_VERSIONS: tuple[tuple[str, Key[str], Severity, str, str], ...] = (
    (NVML, keys.NVML_DRIVER, "warning", "other-driver", "the driver's version"),
    (HOST, keys.HOST_IOMMU, "warning", "other-iommu", "the IOMMU"),
    (HOST, keys.HOST_PEERMEM, "warning", "other-peermem", "the module for memory of peers"),
    (HOST, keys.HOST_KERNEL, "note", "other-kernel", "the kernel"),
    (CPUINFO, keys.CPUINFO_MODEL_NAME, "note", "other-cpu", "the model of the CPUs"),
)
_VERSION_ADVICE = "install the same on all, or keep jobs that span hosts to those that are alike"

_Value = TypeVar("_Value", bound=Hashable)
# A kind of link with the kinds of its ends, and GB/s in its slower direction.
_LinkKind = tuple[str, tuple[str, str]]


class ComparedHost:
    """A host that is compared: its `label` in messages, its `topology`, and a `view` with facts.

    `ident` is the id that precedes the slash in ids of its devices, as in `host0/gpu3`, in the
    machine that it is a part of; "" where it is the machine. Facts that cannot be read are left
    out, without an error.
    """

    def __init__(self, label: str, topology: Topology, ident: str = "") -> None:
        self.label, self.topology, self.ident = label, topology, ident
        try:
            facts = load_facts(topology.extra, topology.name)
        except InputError:
            facts = Facts()  # which is a finding about that host
        self.view = DoctorView(topology, facts)

    def qualify(self, devices: Sequence[str]) -> tuple[str, ...]:
        """Return ids of this host's devices as the machine has them: `host0/gpu3` for `gpu3`."""
        return tuple(qualify(self.ident, x) if self.ident else x for x in devices)

    @cached_property
    def links(self) -> Mapping[tuple[_LinkKind, Fraction | None], list[tuple[str, str]]]:
        """The pairs of devices (ids) with links, by ((link's kind, kinds of both ends), GB/s).

        A pair is there once, at the rate of its slower direction; None is a rate that no source
        states.
        """
        rates: dict[tuple[str, tuple[str, str]], Fraction | None] = {}
        for link in self.topology.links:
            ends = (min(link.src, link.dst), max(link.src, link.dst))
            if {*ends} <= self.topology.by_id.keys():
                other = rates.get((link.kind, ends), link.bandwidth_GBps)
                rates[link.kind, ends] = (
                    None if link.is_assumed or other is None else min(other, link.bandwidth_GBps)
                )
        return group_by_key(
            (((kind, self._list_kinds(ends)), rate), ends) for (kind, ends), rate in rates.items()
        )

    def _list_kinds(self, ends: tuple[str, str]) -> tuple[str, str]:
        first, second = sorted(self.topology.by_id[end].kind for end in ends)
        return first, second


def name_hosts(names: Sequence[str], topologies: Sequence[Topology]) -> list[ComparedHost]:
    """Return the hosts of topologies, each with the name of its topology in `names` as its label.

    Hosts of a topology that has several have their ids there after its name. If there are several
    topologies, each host with a GPU has the id, `host0` and so on, that join_hosts of
    topo/derived/hosts.py gives it in the machine of them all.
    """
    hosts: list[ComparedHost] = []
    joined = 0
    for name, topology in zip(names, topologies, strict=True):
        parts = split_hosts(topology)
        for ident, part in parts.items():
            label = pick_unused_name(f"{name} {ident}".rstrip(), {x.label for x in hosts})
            is_joined = bool(part.ranks) and len(topologies) > 1
            hosts.append(ComparedHost(label, part, f"host{joined}" if is_joined else ident))
            joined += is_joined
    return hosts


@dataclass(frozen=True)
class _Difference:
    """What is different on some hosts: a finding's fields, `text` being the message about one."""

    severity: Severity
    what: str
    text: str
    advice: str


# A difference of a host, its devices concerned, and a line of evidence.
_Case = tuple[_Difference, ComparedHost, Sequence[str], str]


class _Standard:
    """What hosts are compared with: the `reference` if there is one, else what most have."""

    def __init__(self, hosts: Sequence[ComparedHost], reference: ComparedHost | None) -> None:
        self.hosts, self.reference = hosts, reference
        self.severity: Severity = "warning" if reference is None else "error"

    def find(
        self,
        read: Callable[[ComparedHost], _Value],
        amount: Callable[[_Value], float | Fraction],
    ) -> tuple[_Value, str]:
        """Return the value to compare with, and in words who has it.

        That is what most hosts have; of values that as many have, the one of the larger `amount`.
        """
        if self.reference is not None:
            return read(self.reference), f"{self.reference.label} has"
        hosts_with = group_by_key((read(host), host.label) for host in self.hosts)
        usual = max(hosts_with, key=lambda value: (len(hosts_with[value]), amount(value)))
        return usual, _say_who(hosts_with[usual])


def _say_who(labels: Sequence[str]) -> str:
    if len(labels) <= _MAX_OTHERS:
        return f"{' and '.join(labels)} {'has' if len(labels) == 1 else 'have'}"
    return f"{len(labels)} other hosts have"


def compare_hosts(
    hosts: Sequence[ComparedHost], reference: ComparedHost | None = None
) -> list[Finding]:
    """Return the differences between hosts, or from a reference, as findings.

    Without a reference one host has nothing to differ from. Equal differences of several hosts are
    one finding, whose message begins with these hosts.
    """
    if reference is None and len(hosts) < 2:
        return []
    standard = _Standard(hosts, reference)
    cases: list[_Case] = []
    for check in (_check_gpus, _check_nics, _check_links, _check_versions):
        cases += check(standard)
    found = []
    for difference, own in group_by_key((case[0], case[1:]) for case in cases).items():
        labels = list(dict.fromkeys(host.label for host, _, _ in own))
        found.append(
            Finding(
                difference.severity,
                difference.what,
                tuple(ident for host, devices, _ in own for ident in host.qualify(devices)),
                f"{join_names(labels)}: {difference.text}",
                tuple(f"{host.label}: {line}" for host, _, line in own),
                difference.advice,
            )
        )
    return found


# -- devices


def _check_gpus(standard: _Standard) -> Iterator[_Case]:
    """Report hosts with fewer GPUs than the others, or with other models."""

    def count_models(host: ComparedHost) -> tuple[tuple[str, int], ...]:
        counts = Counter(_name_model(gpu) for gpu in host.view.gpus)
        return tuple(sorted(counts.items()))

    usual, who = standard.find(count_models, lambda models: sum(n for _, n in models))
    expected = sum(count for _, count in usual)
    addresses = standard.find(_list_addresses, len)[0]
    for host in standard.hosts:
        own, count = count_models(host), len(host.view.gpus)
        line = f"GPUs = {_list_models(own)} ({host.topology.source or 'the topology'})"
        if count < expected:
            gone = [x for x in addresses if x not in _list_addresses(host)]
            at = f", none at {join_names(gone)}" if 0 < len(gone) == expected - count else ""
            yield (
                _Difference(
                    standard.severity,
                    "fewer-gpus",
                    f"{_count(count, 'GPU')}, where {who} {expected}{at}",
                    "look for the missing one in the kernel's log (NVRM: Xid 79 is a GPU that fell "
                    "off the bus), unless the hosts differ on purpose",
                ),
                host,
                (),
                line,
            )
        elif own != usual:
            yield (
                _Difference(
                    "warning",
                    "other-gpus",
                    f"{_list_models(own)}, where {who} {_list_models(usual)}",
                    "plan for such hosts apart: the slowest sets the pace of a job over all",
                ),
                host,
                (),
                line,
            )


def _list_gpus(host: ComparedHost) -> tuple[str, ...]:
    return tuple(gpu.id for gpu in host.view.gpus)


def _list_addresses(host: ComparedHost) -> tuple[str, ...]:
    return tuple(gpu.bus_id for gpu in host.view.gpus if gpu.bus_id)


def _name_model(gpu: Device) -> str:
    return shorten(gpu.extra.get("name") or gpu.extra.get("gcn") or "GPU")


def _list_models(models: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in models) or "no GPU"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _check_nics(standard: _Standard) -> Iterator[_Case]:
    """Report hosts with fewer NICs than the others, or with slower ones."""
    names, who = standard.find(_list_nics, len)
    advice = (
        "look for it in lspci and the kernel's log; a job's rails need the same NICs everywhere"
    )
    for host in standard.hosts:
        own = _list_nics(host)
        if len(own) < len(names):
            gone = [name for name in names if name not in own]
            line = f"NICs = {join_names(own) or 'none'} ({host.topology.source or 'the topology'})"
            text = f"{_count(len(own), 'NIC')}, where {who} {len(names)}"
            text += f": no {join_names(gone)}" if len(gone) == len(names) - len(own) else ""
            yield _Difference(standard.severity, "fewer-nics", text, advice), host, (), line
    speeds, who = standard.find(_list_speeds, _add)
    for host in standard.hosts:
        slow, fast = _find_slower(Counter(_list_speeds(host)), Counter(speeds))
        for speed in slow:
            devices = [x.id for x in host.view.nics if find_nic_GBps(x) == speed]
            yield (
                _Difference(
                    "warning",
                    "slower-nic",
                    f"{_count(slow[speed], 'NIC')} at {format_GBps(speed)}, where {who} "
                    f"{format_GBps(fast)}",
                    "look at its cable and the port of the switch, which agree on the rate",
                ),
                host,
                devices,
                f"{join_names(devices)} speed = {format_GBps(speed)}",
            )


def _add(rates: Sequence[Fraction]) -> Fraction:
    return sum(rates, Fraction(0))


def _list_nics(host: ComparedHost) -> tuple[str, ...]:
    return tuple(sorted(nic.id for nic in host.view.nics))


def _list_speeds(host: ComparedHost) -> tuple[Fraction, ...]:
    return tuple(sorted(s for nic in host.view.nics if (s := find_nic_GBps(nic)) is not None))


def _find_slower(
    own: Counter[Fraction], expected: Counter[Fraction]
) -> tuple[dict[Fraction, int], Fraction]:
    """Return the rates that there are too many of with how many, and the one that is missing.

    They are the rates below that by more than such rates vary.
    """
    lacking = expected - own
    fastest = max(lacking, default=Fraction(0))
    slow = {rate: n for rate, n in (own - expected).items() if rate < fastest * _AS_FAST}
    return slow, fastest


# -- links


def _check_links(standard: _Standard) -> Iterator[_Case]:
    """Report links that are narrower than the others' of their kind, or missing.

    Links of a host with fewer GPUs or NICs are not missed: they went with these.
    """
    kinds = dict.fromkeys(kind for host in standard.hosts for kind, _ in host.links)
    for kind in kinds:
        rates, who = standard.find(partial(_list_rates, kind=kind), _add)
        most, who_most = standard.find(partial(_count_links, kind=kind), lambda n: n)
        for host in standard.hosts:
            yield from _compare_links(host, kind, rates, who)
            own = _count_links(host, kind)
            if own < most and _has_all_devices(standard, host):
                name, ends = kind
                yield (
                    _Difference(
                        "warning",
                        "fewer-links",
                        f"{_count(own, f'{name} link')} between {ends[0]} and {ends[1]}, "
                        f"where {who_most} {most}",
                        "look for links that are down (nvidia-smi nvlink -s) and for missing "
                        "bridges",
                    ),
                    host,
                    (),
                    f"{name} links = {own} ({host.topology.source or 'the topology'})",
                )
    widths, who = standard.find(_list_widths, lambda listed: sum(n for _, n in listed))
    for host in standard.hosts:
        yield from _compare_widths(host, widths, who)


def _list_rates(host: ComparedHost, kind: _LinkKind) -> tuple[Fraction, ...]:
    return tuple(
        sorted(
            rate
            for (own, rate), pairs in host.links.items()
            if own == kind and rate is not None
            for _ in pairs
        )
    )


def _count_links(host: ComparedHost, kind: _LinkKind) -> int:
    return sum(len(pairs) for (own, _), pairs in host.links.items() if own == kind)


def _has_all_devices(standard: _Standard, host: ComparedHost) -> bool:
    """Return whether a host has as many GPUs and NICs as the others."""
    return all(
        len(read(host)) >= len(standard.find(read, len)[0]) for read in (_list_gpus, _list_nics)
    )


def _compare_links(
    host: ComparedHost, kind: _LinkKind, rates: tuple[Fraction, ...], who: str
) -> Iterator[_Case]:
    name, ends = kind
    slow, fast = _find_slower(Counter(_list_rates(host, kind)), Counter(rates))
    for rate, count in slow.items():
        pairs = host.links[kind, rate]
        yield (
            _Difference(
                "warning",
                "narrower-link",
                f"{_count(count, f'{name} link')} between {ends[0]} and {ends[1]} at "
                f"{format_GBps(rate)}, where {who} {format_GBps(fast)}",
                "reseat the card or the bridge, and compare its lanes and links with theirs",
            ),
            host,
            list(dict.fromkeys(end for pair in pairs for end in pair)),
            f"{join_names([' - '.join(pair) for pair in pairs])} {name} = {format_GBps(rate)}",
        )


def _list_widths(host: ComparedHost) -> tuple[tuple[str, int], ...]:
    """Return the kind and the PCIe lanes in use of each GPU and NIC of which they are known."""
    states = host.view.pcie_states
    devices = (*host.view.gpus, *host.view.nics)
    return tuple(
        sorted((x.kind, lanes) for x in devices if x.id in states and (lanes := states[x.id].lanes))
    )


def _compare_widths(
    host: ComparedHost, widths: tuple[tuple[str, int], ...], who: str
) -> Iterator[_Case]:
    for kind in ("gpu", "nic"):
        own, expected = (
            Counter(Fraction(lanes) for of, lanes in listed if of == kind)
            for listed in (_list_widths(host), widths)
        )
        slow, fast = _find_slower(own, expected)
        for lanes, count in slow.items():
            states = host.view.pcie_states
            devices = [
                x.id
                for x in host.topology.devices
                if x.kind == kind and x.id in states and states[x.id].lanes == lanes
            ]
            yield (
                _Difference(
                    "warning",
                    "fewer-lanes",
                    f"{_count(count, kind.upper())} on {lanes} PCIe lanes, where {who} {fast}",
                    "reseat the card, and compare its slot and riser with theirs",
                ),
                host,
                devices,
                f"{join_names(devices)} PCIe lanes = {lanes}",
            )


# -- versions


def _check_versions(standard: _Standard) -> Iterator[_Case]:
    """Report other versions than most hosts have."""
    for subject, key, severity, what, words in _VERSIONS:
        known: Mapping[str, list[ComparedHost]] = group_by_key(
            (text, host)
            for host in standard.hosts
            if (text := host.view.facts.get_text(subject, key)) is not None
        )
        reference = standard.reference
        if reference is not None:
            usual = reference.view.facts.get_text(subject, key)
            who = f"{reference.label} has"
        else:
            usual = max(known, key=lambda text: len(known[text]), default=None)
            who = _say_who([host.label for host in known[usual]]) if usual is not None else ""
        if usual is None:
            continue
        for text, hosts in known.items():
            for host in hosts if text != usual else ():
                yield (
                    _Difference(
                        severity,
                        what,
                        f"{words} is {shorten(text)}, where {who} {shorten(usual)}",
                        _VERSION_ADVICE,
                    ),
                    host,
                    (),
                    host.view.format_fact(subject, key),
                )
