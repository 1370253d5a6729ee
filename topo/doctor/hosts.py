"""Findings about machines of several hosts: those of each host, merged, and those between hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ..derived.fabric import Fabric, find_fabrics
from ..derived.parts import Part
from ..errors import InputError
from ..facts import load_facts
from ..facts.keys import qualify
from .finding import Finding, join_names

# Maximum number of hosts in a message.
_MAX_HOSTS = 4


def merge_findings(findings_of_hosts: Iterable[tuple[str, Sequence[Finding]]]) -> list[Finding]:
    """Return the findings of all hosts, with equal findings of several hosts merged into one.

    Device ids are those of the whole machine, and messages and evidence begin with the hosts.
    """
    hosts_with: dict[tuple[str, str, tuple[str, ...], str], dict[str, Finding]] = {}
    for host, findings in findings_of_hosts:
        for f in findings:
            hosts_with.setdefault((f.severity, f.what, f.about, f.message), {})[host] = f
    merged: list[Finding] = []
    for of_hosts in hosts_with.values():
        hosts, first = list(of_hosts), next(iter(of_hosts.values()))
        evidence = tuple(
            f"{host}: {line}" for host, finding in of_hosts.items() for line in finding.evidence
        )
        named = (
            join_names(hosts)
            if len(hosts) <= _MAX_HOSTS
            else f"{len(hosts)} hosts ({hosts[0]}, {hosts[1]}, ...)"
        )
        merged.append(
            Finding(
                first.severity,
                first.what,
                tuple(qualify(host, ident) for host in hosts for ident in first.about),
                f"{named}: {first.message}",
                evidence,
                first.advice,
            )
        )
    return merged


def list_new_findings(
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


def check_fabrics(parts: Sequence[Part]) -> Iterator[Finding]:
    """Report hosts whose GPUs are in different cliques of one cluster: a warning.

    No NVLink connects them, although one fabric could. Hosts of different clusters (several NVL72
    racks) are not reported.
    """
    gpus_in: dict[Fabric, list[tuple[str, str]]] = defaultdict(list)
    for part in parts:
        try:
            fabrics = find_fabrics(
                part.topology, load_facts(part.topology.extra, part.topology.name)
            )
        except InputError:
            continue  # reported as a finding of that host
        for gpu, fabric in fabrics.items():
            gpus_in[fabric].append((part.id, gpu))
    for cluster in dict.fromkeys(fabric.cluster for fabric in gpus_in):
        cliques = {
            fabric.clique: gpus for fabric, gpus in gpus_in.items() if fabric.cluster == cluster
        }
        about = tuple(qualify(host, gpu) for gpus in cliques.values() for host, gpu in gpus)
        if len(cliques) > 1 and len({host for gpus in cliques.values() for host, _ in gpus}) > 1:
            hosts_of = {
                clique: tuple(dict.fromkeys(host for host, _ in gpus))
                for clique, gpus in cliques.items()
            }
            listed = " | ".join(
                f"{join_names(hosts)} (clique {clique})" for clique, hosts in hosts_of.items()
            )
            yield Finding(
                "warning",
                "fabric-split",
                about,
                f"the hosts' GPUs are in {len(cliques)} cliques of one cluster, that no NVLink "
                f"joins: {listed}",
                (f"fabric_cluster = {cluster} (NVML)",),
                "have the fabric manager put them into one partition if one job is to use them all",
            )
