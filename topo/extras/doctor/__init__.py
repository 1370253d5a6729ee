"""The doctor: check a machine for problems, from its topology and facts alone.

It works on this machine, a JSON file, NCCL's XML and any other source of a topology. Facts are what
a probe read of a machine, with its sources; a topology has them in `extra["facts"]`. Each check
states its rule in its docstring, and only judges what a file or fact states. A Finding is one
problem: its severity, the devices, a message, evidence and advice. `examine` also returns the
checks that could not be made.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap

from ....extras import CHECKS, Names
from ...derived.parts import Fabric, find_fabrics, split_hosts
from ...errors import InputError
from ...facts import Facts, load_facts
from ...facts.keys import qualify
from ...graph import Topology
from ...grouping import group_by_key
from . import driver, fabric, links, nic_distance, nics, p2p, pcie, rates, stock
from .alike import ComparedHost, compare_hosts
from .view import SEVERITIES, Check, DoctorView, Finding, join_names

__all__ = [
    "ComparedHost",
    "Examination",
    "Finding",
    "examine",
    "list_checks",
    "list_findings",
    "report",
]

_MAX_EVIDENCE = {"error": 6, "warning": 6, "note": 2}
# Columns of a report if the caller does not give the terminal's width.
_WIDTH = 120
# How the id of a device in a machine of several hosts begins.
_DEVICE_OF_HOST = re.compile(r"\b(host[0-9]+)/")
# Maximum number of hosts in a message.
_MAX_HOSTS = 4


@dataclass(frozen=True)
class Examination:
    """The result of an examination.

    `findings` come worst first, `checked` names the checks made, and `skipped` has (name, data that
    it lacks) of each check that could not be made.
    """

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]

    @property
    def summary(self) -> str:
        """The result as "2 errors, 1 warning in 20 checks" or "nothing wrong found in ..."."""
        counts = Counter(f.severity for f in self.findings)
        listed = ", ".join(
            f"{counts[severity]} {severity}{'s' * (counts[severity] > 1)}"
            for severity in SEVERITIES
            if counts[severity]
        )
        return (
            f"{listed or 'nothing wrong found'} in {len(self.checked)} "
            f"check{'s' * (len(self.checked) != 1)}"
        )


def list_checks() -> tuple[Check, ...]:
    """Return every check of the doctor, those of extras included.

    Findings of the same severity are listed in the order of their checks.
    """
    added = Names(CHECKS)
    return (
        *driver.CHECKS,
        *fabric.CHECKS,
        *links.CHECKS,
        *p2p.CHECKS,
        *pcie.CHECKS,
        *nic_distance.CHECKS,
        *nics.CHECKS,
        *(check for name in added.describe() for check in added.find(name)),
        *rates.CHECKS,
        *stock.CHECKS,
    )


def list_findings(topology: Topology) -> tuple[Finding, ...]:
    """Return the findings of `examine` alone: errors first, then warnings, then notes.

    It never raises.
    """
    return examine(topology).findings


def examine(
    topology: Topology,
    hosts: Sequence[ComparedHost] = (),
    reference: ComparedHost | None = None,
) -> Examination:
    """Make all checks that the data allows, and return their findings.

    Each host is examined by itself, with its own facts, and several hosts also as one machine, and
    compared with each other, or with `reference`, a host that is as all should be. `hosts` are
    those to compare and to name in messages; the caller gives them if it has names for them, or
    if some have no GPU and so are not in the topology. By default they are those of the topology.
    Unreadable facts are a finding, too.
    """
    parts = split_hosts(topology)
    if not hosts and (len(parts) > 1 or reference is not None):
        hosts = [ComparedHost(host or topology.name, part, host) for host, part in parts.items()]
    compared = compare_hosts(hosts, reference)
    alike = ("alike-hosts",) if len(hosts) > 1 or reference is not None else ()
    if len(parts) == 1:
        alone = _examine_host(topology)
        findings = _sort([*alone.findings, *compared])
        return replace(alone, findings=findings, checked=(*alone.checked, *alike))
    labels = {host.ident: host.label for host in hosts}
    of_hosts = {host: _examine_host(part) for host, part in parts.items()}
    # the machine as a whole has no facts: checks that need them were made on each host
    whole = _examine_host(
        replace(
            topology, extra={k: v for k, v in topology.extra.items() if k not in ("facts", "notes")}
        )
    )
    found = [
        *_merge_findings(of_hosts, labels),
        *_check_fabrics(parts),
        *_check_copies(parts),
        *compared,
    ]
    found += [_name_hosts(x, labels) for x in _list_new_findings(whole.findings, found)]
    checked = dict.fromkeys(name for e in (*of_hosts.values(), whole) for name in e.checked)
    skipped = {
        name: lack for e in of_hosts.values() for name, lack in e.skipped if name not in checked
    }
    return Examination(_sort(found), (*checked, *alike), tuple(skipped.items()))


def _examine_host(topology: Topology) -> Examination:
    findings: list[Finding] = []
    try:
        facts = load_facts(topology.extra, topology.name)
    except InputError as error:
        facts = Facts()
        findings.append(
            Finding(
                "warning",
                "unreadable-facts",
                (),
                "the facts that the topology keeps cannot be read",
                (str(error),),
                "correct the facts in the file, or take them out; all else is judged without them",
            )
        )
    view = DoctorView(topology, facts)
    checks = list_checks()
    asked = [check for check in checks if check.can_ask(view)]
    for check in asked:
        findings += check.check(view)
    return Examination(
        _sort(findings),
        tuple(check.name for check in asked),
        tuple((check.name, check.lack) for check in checks if check not in asked),
    )


def _merge_findings(
    examinations: Mapping[str, Examination], labels: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the findings of all hosts, with equal findings of several hosts merged into one.

    Device ids are those of the whole machine, and messages and evidence begin with the hosts, by
    their `labels`.
    """
    hosts_with: dict[tuple[object, ...], dict[str, Finding]] = defaultdict(dict)
    for host, examination in examinations.items():
        for f in examination.findings:
            hosts_with[f.severity, f.what, f.message, f.about][host] = f
    for of_hosts in hosts_with.values():
        hosts, first = list(of_hosts), next(iter(of_hosts.values()))
        names = [labels[host] for host in hosts]
        named = (
            join_names(names)
            if len(names) <= _MAX_HOSTS
            else f"{len(names)} hosts ({names[0]}, {names[1]}, ...)"
        )
        yield replace(
            first,
            about=tuple(qualify(host, ident) for host in hosts for ident in first.about),
            message=f"{named}: {first.message}",
            evidence=tuple(
                f"{labels[host]}: {line}" for host, f in of_hosts.items() for line in f.evidence
            ),
        )


def _name_hosts(finding: Finding, labels: Mapping[str, str]) -> Finding:
    """Return a finding about the whole machine with devices by their hosts' labels in its text."""

    def rename(text: str) -> str:
        return _DEVICE_OF_HOST.sub(lambda match: f"{labels.get(match[1], match[1])}/", text)

    return replace(
        finding,
        message=rename(finding.message),
        evidence=tuple(map(rename, finding.evidence)),
    )


def _list_new_findings(
    of_the_whole: Iterable[Finding], of_hosts: Sequence[Finding]
) -> Iterator[Finding]:
    """Yield the findings about the whole machine that no host already has.

    A host has a finding if it has findings of the same kind about all the same devices.
    """
    known: dict[str, set[str]] = defaultdict(set)
    for finding in of_hosts:
        known[finding.what] |= {*finding.about, ""}
    for finding in of_the_whole:
        if not {*finding.about, ""} <= known[finding.what]:
            yield finding


def _check_fabrics(hosts: Mapping[str, Topology]) -> Iterator[Finding]:
    """Report hosts whose GPUs are in different cliques of one cluster: a warning.

    No NVLink connects them, although one fabric could. Hosts of different clusters (several NVL72
    racks) are not reported.
    """
    gpus_in: dict[Fabric, list[tuple[str, str]]] = defaultdict(list)
    for host, topology in hosts.items():
        try:
            fabrics = find_fabrics(topology, load_facts(topology.extra, topology.name))
        except InputError:
            continue  # reported as a finding of that host
        for gpu, own in fabrics.items():
            gpus_in[own].append((host, gpu))
    for cluster in dict.fromkeys(own.cluster for own in gpus_in):
        cliques = {own.clique: gpus for own, gpus in gpus_in.items() if own.cluster == cluster}
        members = [member for gpus in cliques.values() for member in gpus]
        if len(cliques) > 1 and len({host for host, _ in members}) > 1:
            listed = " | ".join(
                f"{join_names(list(dict.fromkeys(host for host, _ in gpus)))} (clique {clique})"
                for clique, gpus in cliques.items()
            )
            yield Finding(
                "warning",
                "fabric-split",
                tuple(qualify(host, gpu) for host, gpu in members),
                f"the hosts' GPUs are in {len(cliques)} cliques of one cluster, that no NVLink "
                f"joins: {listed}",
                (f"fabric_cluster = {cluster} (NVML)",),
                "have the fabric manager put them into one partition if one job is to use them all",
            )


def _check_copies(hosts: Mapping[str, Topology]) -> Iterator[Finding]:
    """Report GPUs with one UUID on several hosts: a warning, since one host was given twice."""
    by_uuid = group_by_key(
        (str(uuid), qualify(host, ident))
        for host, topology in hosts.items()
        for ident in topology.ranks
        if (uuid := topology.by_id[ident].extra.get("uuid"))
    )
    copies = {uuid: gpus for uuid, gpus in by_uuid.items() if len(gpus) > 1}
    if copies:
        about = tuple(gpu for gpus in copies.values() for gpu in gpus)
        yield Finding(
            "warning",
            "same-host-twice",
            about,
            f"{join_names(about)}: the same GPUs by their UUIDs, so one host's file was given "
            "several times",
            tuple(f"{gpus[0]} uuid = {uuid} (the topology)" for uuid, gpus in copies.items()),
            "give each host's own file",
        )


def _sort(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def report(
    examination: Examination, width: int = _WIDTH, *, says_skipped: bool = True
) -> list[str]:
    """Return an examination as lines of text for a terminal of `width` columns.

    Each finding has its evidence and advice; then come a summary, and the checks skipped, with the
    reasons, unless `says_skipped` is false.
    """
    lines = [line for finding in examination.findings for line in _format_finding(finding)]
    lines.append(examination.summary)
    skipped = group_by_key((lack, name) for name, lack in examination.skipped)
    if skipped and says_skipped:
        listed = "; ".join(f"{', '.join(checks)} ({lack})" for lack, checks in skipped.items())
        lines += wrap(f"not checked: {listed}", width, subsequent_indent="    ")
    return lines


def _format_finding(finding: Finding) -> Sequence[str]:
    most = _MAX_EVIDENCE[finding.severity]
    more = len(finding.evidence) - most
    return (
        f"{finding.severity}: {finding.message} [{finding.what}]",
        *(f"    {line}" for line in finding.evidence[:most]),
        *((f"    and {more} more of the kind",) if more > 0 else ()),
        f"    advice: {finding.advice}",
    )
