"""Write settings, ring order and host file for stock NCCL on hosts that cables join.

The single-path bound holds for plans in which two GPUs use one route, the hardware's. Stock NCCL
is NCCL as it is, without plans of topoplan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ....topo.errors import InfeasibleError
from ....topo.pictures.cables import format_rate
from ...bounds.single_path import Bounds
from ...ir.collective import Collective
from .hosts import CabledHosts
from .nccl import SUBNET_AWARE_SINCE, NcclCabling, find_nccl_cabling
from .rings import RING_SHARES, find_width_GBps, rate_ring

_AWARE = "NCCL_IB_SUBNET_AWARE_ROUTING"
# Where the rules and the experiences come from.
SOURCES = (
    "NVIDIA/nccl v2.30.7-1: src/transport/net_ib/connect.cc, src/init.cc",
    "NVIDIA/dgx-spark-playbooks: nvidia/nccl (three Sparks in a ring)",
    "spark-arena/sparkrun#174, MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks#3",
    "FujitsuPolycom/sparkring (a patched NCCL)",
)


@dataclass(frozen=True)
class NcclAdvice:
    """Settings for stock NCCL on some hosts, and what its rings reach.

    `algbw_GBps` is that of the collective at the rates of the links, None if there is no ring;
    `reason` is why the settings should not be used, since NCCL does not start; None if they should.
    """

    hosts: CabledHosts = field(repr=False)
    cabling: NcclCabling
    collective: str
    bounds: Bounds = field(repr=False)
    algbw_GBps: Fraction | None
    reason: str | None

    @property
    def names(self) -> list[str]:
        """The hosts' names in the order of ranks."""
        return [self.hosts.names[host] for host in self.cabling.order]

    @property
    def fraction(self) -> float | None:
        """The rate of NCCL's rings as a fraction of the single-path bound; None without a ring."""
        bound = self.bounds.single_path.algbw_GBps
        return None if self.algbw_GBps is None else float(self.algbw_GBps / bound)

    @property
    def settings(self) -> dict[str, str]:
        """The environment variables that all hosts set alike."""
        common = dict(self.cabling.settings)
        if _AWARE in common:
            # A plugin replaces the transport that knows about subnets.
            common["NCCL_NET_PLUGIN"] = "none"
        interfaces = set(self.hosts.management)
        if self.hosts.rdma and len(interfaces) == 1 and "" not in interfaces:
            common["NCCL_SOCKET_IFNAME"] = f"={interfaces.pop()}"
        return common

    def list_own_settings(self, host: int) -> dict[str, str]:
        """Return the environment variables of one host: its RDMA devices and interface."""
        ports = self.cabling.ports[host]
        devices = [name for port in ports for name in port.rdma]
        if not devices:  # two hosts over TCP
            return _name_interfaces("=", [port.name for port in ports])
        own = {"NCCL_IB_HCA": f"={','.join(devices)}"}
        if "NCCL_SOCKET_IFNAME" not in self.settings and self.hosts.count > 2:
            management = self.hosts.management[host]
            cabled = {port.name for cable in self.hosts.cables for port in cable.ends}
            own |= _name_interfaces(*("=", [management]) if management else ("^=", sorted(cabled)))
        return own

    def write(self) -> str:
        """Return a shell script that sets the variables, to be sourced on every host."""
        own = {host: self.list_own_settings(host) for host in self.cabling.order}
        alike = all(each == own[0] for each in own.values())
        lines = [
            *(f"# {line}" for line in self.list_lines()),
            *_export({**self.settings, **(own[0] if alike else {})}),
        ]
        if not alike:
            lines.append('case "$(hostname)" in')
            for host in self.cabling.order:
                name = self.hosts.names[host]
                lines.append(f"{name} | {name}.*)")
                lines += [f"    {line}" for line in _export(own[host])]
                lines.append("    ;;")
            lines += ['*) echo "$(hostname): no host of this job" >&2 ;;', "esac"]
        return "\n".join(lines) + "\n"

    def write_hostfile(self) -> str:
        """Return Open MPI's host file: one rank on each host, in the order of the ring."""
        return "".join(f"{name} slots=1\n" for name in self.names)

    def list_lines(self) -> list[str]:
        """Return the lines to print: what the settings are for, reach, and do not support."""
        cabling, bound = self.cabling, self.bounds.single_path.algbw_GBps
        version = (
            "any NCCL with its own InfiniBand transport"
            if cabling.is_any_version
            else f"NCCL {SUBNET_AWARE_SINCE} or newer"
        )
        lines = [f"for {version}; ranks in the order {' '.join(self.names)}"]
        if self.algbw_GBps is not None:
            share = f"{self.fraction:.1%} of the single-path bound, {format_rate(bound)}"
            lines.append(
                f"its rings reach at most {format_rate(self.algbw_GBps)} GB/s algbw of "
                f"{self.collective}, {share}: {self._describe_ring()}"
            )
        if cabling.rings_only:
            lines += [
                "rings only: a tree needs cables between other hosts, too, and NCCL would fail in "
                "ncclTransportTreeConnect; with NCCL_ALGO=RING and cuMem it never connects one",
                "programs that set NCCL_CUMEM_ENABLE=0, as vLLM and SGLang do, connect trees at "
                "the start and fail: there only a patched NCCL helps (FujitsuPolycom/sparkring)",
                "sends and alltoall between hosts without a cable fail, too (pipeline or expert "
                "parallelism): plans relay them",
            ]
        if _AWARE in cabling.settings:
            lines.append(
                "each cable needs a subnet of its own, which differs in the first 24 bits "
                "(NCCL_IB_SUBNET_PREFIX_LEN sets another length)"
            )
        return lines

    def _describe_ring(self) -> str:
        if self.fraction == 1:
            return "nothing is faster"
        idle = "each cable is used in one direction only, where the bound uses both"
        if len(self.hosts.cables) > self.hosts.count:
            idle += ", and cables that are not in the ring are idle"
        return idle

    def to_json(self) -> dict[str, Any]:
        """Return the advice's fields in topo-synth's JSON."""
        return {
            "order": self.names,
            "ranks": list(self.cabling.order),
            "settings": self.settings,
            "hosts": {
                self.hosts.names[host]: self.list_own_settings(host) for host in self.cabling.order
            },
            "nccl_since": None if self.cabling.is_any_version else SUBNET_AWARE_SINCE,
            "rings_only": self.cabling.rings_only,
            "algbw_GBps": None if self.algbw_GBps is None else float(self.algbw_GBps),
            "bound_one_way": float(self.bounds.single_path.algbw_GBps),
            "fraction": self.fraction,
            "sources": list(SOURCES),
            "written": self.reason is None,
            "reason": self.reason,
        }


def advise_nccl(
    hosts: CabledHosts, collective: Collective, bounds: Bounds, *, is_subnet_aware: bool
) -> NcclAdvice:
    """Return settings for stock NCCL on some hosts, and the rate it reaches for a collective.

    `bounds` are those of the hosts; `is_subnet_aware` says whether the NCCL in use knows
    NCCL_IB_SUBNET_AWARE_ROUTING. Raise InfeasibleError for a collective that does not go around
    rings, and on Macs.
    """
    if hosts.are_macs:
        raise InfeasibleError(
            f"{hosts.topology.name}: NCCL does not run on Macs; write mlx-hostfile for MLX",
            parameter="format",
        )
    if collective.name not in RING_SHARES:
        raise InfeasibleError(
            f"{collective.name} does not go around NCCL's rings; the settings are for "
            f"{', '.join(RING_SHARES)}"
        )
    cabling = find_nccl_cabling(hosts)
    algbw = None
    if not cabling.obstacle:
        algbw = rate_ring(collective.name, hosts.count, find_width_GBps(hosts, cabling.order))
    reason = _explain_refusal(hosts, cabling, is_subnet_aware)
    if reason is not None:
        reason = (
            f"no settings written: {reason}; plans of topoplan relay along the cables over gloo, "
            f"at most {format_rate(bounds.single_path.algbw_GBps)} GB/s algbw (topo-run, the hook, "
            "the backend)"
        )
    return NcclAdvice(hosts, cabling, collective.name, bounds, algbw, reason)


def _explain_refusal(hosts: CabledHosts, cabling: NcclCabling, is_subnet_aware: bool) -> str | None:
    """Return why stock NCCL does not start, None if it does."""
    if cabling.obstacle:
        return f"stock NCCL ({SUBNET_AWARE_SINCE}) cannot start on this cabling: {cabling.obstacle}"
    if not hosts.rdma and hosts.count > 2:
        return (
            f"stock NCCL ({SUBNET_AWARE_SINCE}, and RCCL) cannot start on this cabling without "
            "RDMA: over sockets a host listens on one port for all others, and the topology names "
            "no RDMA devices"
        )
    if not is_subnet_aware and not cabling.is_any_version:
        return (
            f"NCCL before {SUBNET_AWARE_SINCE} cannot start on this cabling: it pairs ports by "
            "their numbers, whatever their cables lead to"
        )
    return None


def _name_interfaces(sign: str, names: Iterable[str]) -> dict[str, str]:
    """Return the variable that has NCCL use ("=") or avoid ("^=") interfaces, if any is known.

    NCCL finds no interface at all if the list is empty.
    """
    known = ",".join(filter(None, names))
    return {"NCCL_SOCKET_IFNAME": f"{sign}{known}"} if known else {}


def _export(settings: dict[str, str]) -> list[str]:
    return [f'export {name}="{value}"' for name, value in settings.items()]
