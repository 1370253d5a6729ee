"""The data of the rules on GPUDirect: the pairs of a machine's devices, and paths between them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import combinations, product
from typing import Any, TypeGuard

from ...facts import keys, load_facts
from ...facts.keys import Key, net_subject, pci_subject, rdma_subject
from ...facts.view import read_pci_details
from ...graph import Device, Topology
from ...hardware import ASSUMED_PLACE
from ...matrix import collect_links
from ..machine_details.view import DetailedView
from .nccl_paths import Paths

AMD, NVIDIA = "AMD", "NVIDIA"
_ENDS = ("gpu", "nic")
# Attributes of a NIC on which rules depend.
_TRAITS = ("gdr", "host", "box", "pci", ASSUMED_PLACE)


class PairView(DetailedView):
    """A machine and the paths between its GPUs and NICs, for the rules on GPUDirect.

    Its base class finds the facts about a GPU, its board and its NVLinks. `asked` has the (subject,
    key) of all facts, also of those without a value, `asked_keys` their keys, and `subjects` their
    subjects. Values of the wrong type in a file count as unknown.
    """

    def __init__(self, topology: Topology) -> None:
        """Raise InputError if the topology has malformed facts."""
        super().__init__(topology, load_facts(topology.extra, topology.name))
        self.paths = Paths(topology)
        self.asked = frozenset((fact.subject, fact.key) for fact in self.facts.items)
        self.asked_keys = frozenset(key for _, key in self.asked)
        self.subjects = frozenset(subject for subject, _ in self.asked)

    @cached_property
    def pairs(self) -> tuple[tuple[str, str, str], ...]:
        """The pairs to judge: ("p2p", GPU id, GPU id) and ("rdma", GPU id, NIC id), each once.

        First each two GPUs of one host, then each GPU and NIC of one host; both host by host.
        """
        p2p: list[tuple[str, str, str]] = []
        rdma: list[tuple[str, str, str]] = []
        for host in dict.fromkeys(self.paths.host_of[gpu] for gpu in self.topology.ranks):
            gpus, nics = (self.paths.list_in_host(host, kind) for kind in _ENDS)
            p2p += [("p2p", a, b) for a, b in combinations(gpus, 2) if self.paths.share_host(a, b)]
            rdma += [("rdma", a, b) for a, b in product(gpus, nics) if self.paths.share_host(a, b)]
        return (*p2p, *rdma)

    @cached_property
    def first_alike(self) -> Mapping[str, str]:
        """Maps each NIC to the first equivalent one, by ids.

        Equivalent NICs have equal links, and equal facts and attributes, such as the functions of
        an adapter with virtual ones.
        """
        links = collect_links(self.topology)
        first: dict[object, str] = {}
        return {
            nic.id: first.setdefault((links[nic.id], *self._list_traits(nic)), nic.id)
            for nic in self.nics
        }

    def _list_traits(self, nic: Device) -> Iterator[object]:
        bus_id = nic.bus_id
        yield bus_id and bus_id.partition(":")[2][:1]
        yield from (repr(nic.extra.get(name)) for name in _TRAITS)
        yield from (
            (subject in self.subjects, self.facts.get_text(subject, key))
            for subject, key in (
                (rdma_subject(nic.id), keys.RDMA_STATE),
                (net_subject(nic.id), keys.NET_STATE),
                (pci_subject(bus_id), keys.PCI_VENDOR),
                (pci_subject(bus_id), keys.PCI_DRIVER),
                (pci_subject(bus_id), keys.PCI_BRIDGES),
            )
        )
        yield self.facts.get_texts(pci_subject(bus_id), keys.PCI_BRIDGES)

    def count_pairs(self) -> int:
        """Return an upper bound on the number of pairs to judge, without listing them."""
        gpus, nics = (
            Counter(self.paths.host_of[ident] for ident in {*ids})
            for ids in (self.topology.ranks, self.first_alike.values())
        )
        return sum(n * (n - 1) // 2 + n * nics[host] for host, n in gpus.items())

    # -- one device

    def get_gpu_number(self, gpu: str, key: Key[int]) -> int | None:
        """Return an integer about a GPU: attribute `key` of its device, else the fact `key`.

        The attribute (in `extra`) comes from the topology's file. Return None if neither is known,
        or the attribute is a text without an integer.
        """
        if _is_number(self.topology.by_id[gpu].extra.get(key)):
            return self.get_attribute(gpu, key)
        return self.facts.get_number(self.find_subject(gpu), key)

    def get_attribute(self, ident: str, name: str) -> int | None:
        """Return the attribute `name` in the `extra` of device `ident` as an integer.

        None if it is missing or no integer.
        """
        value = self.topology.by_id[ident].extra.get(name)
        try:
            return int(value) if _is_number(value) else None
        except ValueError:
            return None

    def get_gpu_name(self, gpu: str) -> str | None:
        """Return a GPU's model: `extra["name"]` of its device, else the fact, else None."""
        name = self.topology.by_id[gpu].extra.get("name")
        return (
            name
            if isinstance(name, str)
            else self.facts.get_text(self.find_subject(gpu), keys.GPU_NAME)
        )

    def get_pci_text(self, ident: str, key: Key[str]) -> str | None:
        """Return the fact `key` about the PCI function of device `ident`, else the attribute.

        The attribute is in its `extra["pci"]`, from the file. Return None if neither is known.
        """
        device = self.topology.by_id[ident]
        text = self.facts.get_text(pci_subject(device.bus_id), key) if device.bus_id else None
        attribute = read_pci_details(device).get(key)
        return attribute if text is None and isinstance(attribute, str) else text

    def find_maker(self, gpu: str) -> str:
        """Return NVIDIA or AMD, the maker whose library's rules hold; NVIDIA if it is unknown."""
        return AMD if super().find_maker(gpu) == AMD else NVIDIA

    # -- bridges

    def list_ports_between(self, a: str, b: str) -> tuple[str, ...] | None:
        """Return the PCI addresses of the bridges above one of two devices but not above both.

        `a` and `b` are device ids. Return an empty tuple if no bridge is above both, and None if
        the bridges are unknown.
        """
        subjects = [pci_subject(self.topology.by_id[ident].bus_id) for ident in (a, b)]
        if any(self.facts.get_source(s, keys.PCI_BRIDGES) is None for s in subjects):
            return None
        above_a, above_b = (self.facts.get_texts(s, keys.PCI_BRIDGES) for s in subjects)
        shared = {*above_a} & {*above_b}
        return tuple(x for x in (*above_a, *above_b) if x not in shared) if shared else ()

    def get_acs(self, port: str) -> str:
        """Return the ACS controls that are on at the bridge with PCI address `port`.

        They are one text, joined by commas: "off" if none is on, empty if unknown.
        """
        return self.facts.get_text(pci_subject(port), keys.PCI_ACS) or ""

    @cached_property
    def redirecting(self) -> tuple[str, ...]:
        """The PCI addresses of bridges whose ACS redirects a pair's traffic to the root complex."""
        ports = {port for _, a, b in self.pairs for port in self.list_ports_between(a, b) or ()}
        return tuple(sorted(port for port in ports if "redirect" in self.get_acs(port)))

    # -- a host

    def get_cpu_text(self, ident: str, name: str) -> str | None:
        """Return `arch`, `vendor`, `familyid` or `modelid` of the first CPU on the host of `ident`.

        None if it is unknown. NCCL's rules depend on that CPU's model.
        """
        cpus = self.paths.list_in_host(ident, "cpu")
        value = self.topology.by_id[cpus[0]].extra.get(name) if cpus else None
        return str(value) if isinstance(value, (int, str)) else None

    def explain_missing(self, subject: str, key: Key[Any]) -> str:
        """Return why a fact of a `subject` has no value; "not asked" if it was never queried."""
        return self.facts.get_reason(subject, key) or "not asked"


def _is_number(value: object) -> TypeGuard[int | str]:
    return isinstance(value, (int, str)) and not isinstance(value, bool)
