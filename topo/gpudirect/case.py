"""A topology and its facts, as the rules on GPUDirect ask for them; odd values count as not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from itertools import chain, combinations, product

from ..facts import Facts, facts_of
from ..graph import Device, Topology
from .nccl_paths import Paths

AMD, NVIDIA = "AMD", "NVIDIA"
_ENDS = ("gpu", "nic")
_VENDORS = {"0x1002": AMD, "0x10de": NVIDIA}


class Case:
    """What is known of one topology. Raises InputError where the topology keeps malformed facts."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.facts: Facts = facts_of(topology.extra, topology.name)
        self.paths = Paths(topology)
        self.asked = frozenset((fact.subject, fact.key) for fact in self.facts.items)
        self.asked_keys = frozenset(key for _, key in self.asked)
        self.subjects = frozenset(subject for subject, _ in self.asked)

    @cached_property
    def pairs(self) -> tuple[tuple[str, str, str], ...]:
        """(p2p or rdma, id, id) of each two GPUs of one host, then of each GPU and NIC of one, host by host."""
        near: list[tuple[str, str, str]] = []
        beside: list[tuple[str, str, str]] = []
        for host in dict.fromkeys(self.paths.host_of[gpu] for gpu in self.topology.ranks):
            gpus, nics = (self.paths.of_host(host, kind) for kind in _ENDS)
            near += [("p2p", a, b) for a, b in combinations(gpus, 2) if self.paths.one_host(a, b)]
            beside += [("rdma", a, b) for a, b in product(gpus, nics) if self.paths.one_host(a, b)]
        return (*near, *beside)

    def most_pairs(self) -> int:
        """How many pairs there are at most, without listing them."""
        gpus, nics = (Counter(self.paths.host_of[d.id] for d in self.topology.devices if d.kind == k) for k in _ENDS)
        return sum(n * (n - 1) // 2 + n * nics[host] for host, n in gpus.items())

    # -- one device ----------------------------------------------------------------------------------------------

    @cached_property
    def _index_by_bus(self) -> Mapping[str, str]:
        told = {self.facts.text(f"gpu/{i}", "bus_id"): i for i in self.facts.names("gpu")}
        return {bus_id: i for bus_id, i in told.items() if bus_id is not None}

    def subject(self, gpu: str) -> str:
        """The subject of the facts about a GPU: by its bus address, else by its id."""
        bus_id = self.topology.by_id[gpu].bus_id
        index = self._index_by_bus.get(bus_id) if bus_id is not None else None
        return f"gpu/{index if index is not None else gpu.removeprefix('gpu')}"

    def number(self, ident: str, key: str) -> int | None:
        """A whole number that the device's file gives, else for a GPU the facts; None where neither does."""
        value = self.topology.by_id[ident].extra.get(key)
        if isinstance(value, (int, str)) and not isinstance(value, bool):
            try:
                return int(value)
            except ValueError:
                return None
        return self.facts.number(self.subject(ident), key) if self.topology.by_id[ident].kind == "gpu" else None

    def text(self, ident: str, key: str) -> str | None:
        """A text that the device's file gives, else for a GPU the facts."""
        value = self.topology.by_id[ident].extra.get(key)
        if isinstance(value, str):
            return value
        return self.facts.text(self.subject(ident), key) if self.topology.by_id[ident].kind == "gpu" else None

    def pci(self, ident: str, key: str) -> str | None:
        """A fact about the device's PCI function, None where its address or the fact is not known."""
        device = self.topology.by_id[ident]
        said = self.facts.text(f"pci/{device.bus_id}", key) if device.bus_id else None
        told = device.extra.get("pci")
        if said is None and isinstance(told, Mapping) and isinstance(told.get(key), str):
            return str(told[key])
        return said

    def maker(self, gpu: str) -> str:
        """NVIDIA or AMD: by the PCI vendor, else by xGMI links or an attribute that only RCCL's files have."""
        known = _VENDORS.get(self.pci(gpu, "vendor") or "")
        if known is not None:
            return known
        return AMD if "gcn" in self.topology.by_id[gpu].extra or gpu in self._with_xgmi else NVIDIA

    @cached_property
    def _with_xgmi(self) -> frozenset[str]:
        return frozenset(chain.from_iterable((x.src, x.dst) for x in self.topology.links if x.kind == "xgmi"))

    # -- bridges -------------------------------------------------------------------------------------------------

    def ports_between(self, a: str, b: str) -> tuple[str, ...] | None:
        """Addresses of the bridges below the last one that two devices share; None where the bridges are not known."""
        chains = []
        for ident in (a, b):
            bus_id = self.topology.by_id[ident].bus_id
            if bus_id is None or self.facts.source(f"pci/{bus_id}", "bridges") is None:
                return None
            chains.append(self.facts.texts(f"pci/{bus_id}", "bridges"))
        shared = set(chains[0]) & set(chains[1])
        return tuple(bridge for bridge in (*chains[0], *chains[1]) if bridge not in shared) if shared else ()

    def acs(self, port: str) -> str:
        """What of ACS is switched on at a bridge, empty where that is not known."""
        return self.facts.text(f"pci/{port}", "acs") or ""

    @cached_property
    def redirecting(self) -> tuple[str, ...]:
        """All bridges that send traffic between two devices up to the root complex, in order of address."""
        found = {port for _, a, b in self.pairs for port in self.ports_between(a, b) or ()}
        return tuple(sorted(port for port in found if "redirect" in self.acs(port)))

    # -- a host --------------------------------------------------------------------------------------------------

    def cpu(self, ident: str) -> Device | None:
        """The first CPU of the host of a device, which is the one that NCCL goes by."""
        cpus = self.paths.of_host(ident, "cpu")
        return self.topology.by_id[cpus[0]] if cpus else None

    def cpu_text(self, ident: str, key: str) -> str | None:
        """What is said of that CPU: `arch`, `vendor`, `familyid`, `modelid`."""
        cpu = self.cpu(ident)
        value = None if cpu is None else cpu.extra.get(key)
        return str(value) if isinstance(value, (int, str)) else None

    def reason(self, subject: str, key: str) -> str:
        """Why a fact is not known, in words for the evidence."""
        return self._reasons.get((subject, key), "not asked")

    @cached_property
    def _reasons(self) -> Mapping[tuple[str, str], str]:
        return {(fact.subject, fact.key): fact.missing for fact in reversed(self.facts.missing) if fact.missing}
