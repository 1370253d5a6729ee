"""Read hwloc's objects from its XML, versions 1 to 3: tree, positions, sets, addresses.

An object is an XML element for a part of the machine: a NUMA node, a socket, a PCI function, or a
device that the operating system has on one (OSDev, such as mlx5_0).

Version 1 has NUMA nodes in the tree of the CPUs, later versions next to it. Version 3 writes the
type of a device of the operating system as a sum of bits, and puts information about the whole
machine outside the objects.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from ...formats.notes import Notes
from ...formats.safe_xml import Element

# hwloc's word for an unknown os_index.
MAX_INDEX = 2**32 - 1

NVIDIA, AMD = "0x10de", "0x1002"

_OBJECT_ID = re.compile(r"obj([0-9]{1,19})(?=[0-9]*$)")
_BUS_ID = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", re.IGNORECASE)
_BUSES = re.compile(r"([0-9a-f]{1,8}):\[([0-9a-f]{2})-[0-9a-f]{2}\]", re.IGNORECASE)
_IDS = r"\[([0-9a-f]{4}):([0-9a-f]{4})\]"
_PCI_TYPE = re.compile(
    rf"([0-9a-f]{{4}}) {_IDS} {_IDS} [0-9a-f]{{2}}(?: ([0-9a-f]{{2}}))?", re.IGNORECASE
)
_NUMBER = re.compile(r"[0-9]{1,6}(?:[.,][0-9]{1,9})?")
_WORD = r"(?:0x)?[0-9a-fA-F]{0,8}"
_SET = re.compile(rf"{_WORD}(?:,{_WORD})*")
_ANY_BIT = re.compile(r"[1-9a-fA-F]")
# Room for the bits of more than 20,000 CPUs.
_MAX_SET_CHARACTERS = 2**13
# Machines of one file are not connected to each other, so more than a few are of no use.
MAX_MACHINES = 512
_OSDEV_KINDS: Mapping[int, Mapping[str, int]] = {
    2: {"gpu": 1, "network": 2, "openfabrics": 3, "coprocessor": 5},
    3: {"gpu": 1 << 2, "coprocessor": 1 << 3, "network": 1 << 4, "openfabrics": 1 << 5},
}


def read_infos(element: Element) -> dict[str, str]:
    """Return the names and values of an object's <info> elements; of equal names, the first."""
    pairs: dict[str, str] = {}
    for child in element:
        if child.tag == "info":
            pairs.setdefault(child.get("name") or "", child.get("value") or "")
    return pairs


def read_gp_index(element: Element) -> int | None:
    """Return hwloc's gp_index of an object, by which matrices name it; None if there is none.

    Version 3 also has it in the id.
    """
    match = _OBJECT_ID.match(element.get("id") or "")
    return element.get_integer("gp_index", int(match[1]) if match else None, maximum=2**63)


def read_os_index(element: Element) -> int | None:
    """Return the operating system's number of an object; None if there is none."""
    number = element.get_integer("os_index", maximum=MAX_INDEX, minimum=-1)
    return None if number in (-1, MAX_INDEX) else number


def parse_bits(element: Element, key: str) -> int:
    """Parse a cpuset or nodeset ("0x00000003,,0x0") into an integer with these bits.

    It is 0 if the set is absent. Raise InputError if it is malformed.
    """
    text = element.get(key) or ""
    words = text.removeprefix("0xf...f").strip(",")
    if len(text) > _MAX_SET_CHARACTERS or not _SET.fullmatch(words):
        raise element.make_error(
            f"{key}={text[:40]!r}: expected hexadecimal words such as 0x00000003,0xffffffff"
        )
    return int("".join([word.removeprefix("0x").zfill(8) for word in words.split(",")]), 16)


def format_cpu_list(number: int) -> str:
    """Format the bits of a number as Linux lists CPUs: 0-19,40-59."""
    runs = ((run.start(), run.end() - 1) for run in re.finditer("1+", f"{number:b}"[::-1]))
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def read_bus_id(element: Element) -> str:
    """Return an object's PCI address as Linux writes it, such as 0000:3b:00.0.

    Raise InputError if it has none.
    """
    text = element.get("pci_busid") or ""
    match = _BUS_ID.fullmatch(text)
    if match is None:
        raise element.make_error(
            f"pci_busid={text[:40]!r}: expected an address such as 0000:3b:00.0"
        )
    return f"{int(match[1], 16):04x}:{match[2]}".lower()


def read_root_name(element: Element) -> str | None:
    """Return Linux's name for a root complex, pci0000:00; None if its buses are unknown."""
    match = _BUSES.fullmatch(element.get("bridge_pci") or "")
    return f"pci{int(match.group(1), 16):04x}:{match.group(2)}".lower() if match else None


def read_link_GBps(element: Element) -> Fraction:
    """Return `pci_link_speed`, the GB/s of all lanes in one direction, 0 if unknown.

    The line encoding is deducted, the overhead of packets is not. Raise InputError for other texts.
    """
    text = element.get("pci_link_speed") or "0"
    if not _NUMBER.fullmatch(text):
        raise element.make_error(
            f"pci_link_speed={text[:40]!r}: expected GB/s, such as 15.753846, or 0"
        )
    return Fraction(text.replace(",", "."))  # some locales write a comma


def read_pci_ids(element: Element) -> dict[str, str]:
    """Parse `pci_type` ("0302 [10de:1db8] [10de:131d] a1 00") into hexadecimal ids such as 0x10de.

    The keys are class, vendor, device, subsystem_vendor and subsystem_device; there are none if it
    is absent. Raise InputError if it is malformed.
    """
    text = element.get("pci_type")
    if text is None:
        return {}
    match = _PCI_TYPE.fullmatch(text.strip())
    if match is None:
        raise element.make_error(
            f"pci_type={text[:40]!r}: expected one such as 0302 [10de:1db8] [10de:131d] a1"
        )
    kind, vendor, device, sub_vendor, sub_device, interface = (
        group and f"0x{group.lower()}" for group in match.groups()
    )
    return {
        "class": f"{kind}{(interface or '0x00')[2:]}",
        "vendor": vendor,
        "device": device,
        "subsystem_vendor": sub_vendor,
        "subsystem_device": sub_device,
    }


def is_osdev(element: Element, version: int, *kinds: str) -> bool:
    """Return whether an OSDev object is of one of `kinds`: gpu, coprocessor, network, openfabrics.

    `version` is the file's major version, on which the codes of kinds depend.
    """
    type_code = element.get_integer("osdev_type", 0, maximum=2**31) or 0
    codes = [_OSDEV_KINDS[3 if version >= 3 else 2][kind] for kind in kinds]
    return any(type_code & code for code in codes) if version >= 3 else type_code in codes


@dataclass(eq=False)
class PciFunction:
    """A PCI function: address, ids, the bridges above it from the top, and its root complex.

    `near` is the closest object around it with CPUs or memory. `osdevs` are the operating system's
    devices on it, such as nvml0 or mlx5_0. `bus_id` is None for a GPU for which the file gives no
    PCI function.
    """

    element: Element
    bus_id: str | None
    ids: Mapping[str, str]
    bridges: tuple[Element, ...]
    root: str | None
    near: Element
    osdevs: list[Element] = field(default_factory=list)

    @property
    def osdev_names(self) -> list[str]:
        """The names of the `osdevs`, an empty one for a device without a name."""
        return [osdev.get("name") or "" for osdev in self.osdevs]

    @property
    def address_key(self) -> tuple[int, str]:
        """The key that sorts functions by address; longer domains come last."""
        return len(self.bus_id or ""), self.bus_id or ""

    def has_class(self, *prefixes: str) -> bool:
        """Return whether the PCI class starts with one of `prefixes`, such as 0x02."""
        return self.ids.get("class", "").startswith(prefixes)


@dataclass(eq=False)
class HwlocMachine:
    """The objects below one Machine element, indexed; creating it reads them.

    The ids of its devices start with `prefix`, and `infos` are its own <info> values. `version` is
    the file's major version. Doubts about the file are added to `notes`. `packages` are sockets,
    `functions` those of PCI. `numa` maps a NUMA node to the package around it (None: none is), and
    `by_gp` maps hwloc's gp_index to an object. `loose` has a function without a bus id for each
    device of the operating system that is on no PCI function.
    """

    element: Element
    prefix: str
    version: int
    notes: Notes
    infos: Mapping[str, str]
    numa: dict[Element, Element | None] = field(default_factory=dict)
    packages: list[Element] = field(default_factory=list)
    functions: list[PciFunction] = field(default_factory=list)
    loose: list[PciFunction] = field(default_factory=list)
    by_gp: dict[int, Element] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._index(self.element)
        self._read_below(self.element, self.element, (), None, None)

    def _index(self, element: Element) -> None:
        if (number := read_gp_index(element)) is not None:
            self.by_gp.setdefault(number, element)

    def _read_below(
        self,
        above: Element,
        near: Element,
        bridges: tuple[Element, ...],
        root: str | None,
        package: Element | None,
    ) -> None:
        """Read the objects below one: packages, NUMA nodes, and devices with the bridges above."""
        for element in above.select("object"):
            kind = element.get("type")
            self._index(element)
            if kind == "Bridge" and element.get("pci_busid") is None:
                self._read_below(element, near, (), read_root_name(element), package)
            elif kind in ("Bridge", "Misc"):
                self._read_below(
                    element,
                    near,
                    (*bridges, element) if kind == "Bridge" else bridges,
                    root,
                    package,
                )
            elif kind == "PCIDev":
                osdevs = [inner for inner in element.walk() if inner.get("type") == "OSDev"]
                for inner in osdevs:
                    self._index(inner)
                self.functions.append(
                    PciFunction(
                        element,
                        read_bus_id(element),
                        read_pci_ids(element),
                        bridges,
                        root,
                        near,
                        osdevs,
                    )
                )
            elif kind == "OSDev":
                self.loose.append(PciFunction(element, None, {}, (), None, near, [element]))
            else:
                if kind == "NUMANode":
                    self.numa[element] = package
                is_package = kind in ("Package", "Socket")
                if is_package:
                    self.packages.append(element)
                sets = (element.get("cpuset") or "") + (element.get("nodeset") or "")
                inside = element if _ANY_BIT.search(sets) else near
                self._read_below(element, inside, (), None, element if is_package else package)


def read_machines(root: Element, version: int, notes: Notes) -> list[HwlocMachine]:
    """Return every machine in a file, of the format's major `version`; all add to the same `notes`.

    If there are several, the ids of their devices begin with host0/, host1/ ... Raise InputError if
    there is no object, or more than MAX_MACHINES.
    """
    top_objects = root.select("object")
    if not top_objects:
        raise root.make_error("has no <object>; expected a machine as lstopo --of xml writes it")
    elements = [m for top in top_objects for m in _find_outermost_machines(top)] or top_objects[:1]
    if len(elements) > MAX_MACHINES:
        raise root.make_error(
            f"holds {len(elements)} machines; more than {MAX_MACHINES} are refused"
        )
    shared = {} if len(elements) > 1 else read_infos(root)
    prefixes = [f"host{i}/" for i in range(len(elements))] if len(elements) > 1 else [""]
    return [
        HwlocMachine(element, prefix, version, notes, read_infos(element) | shared)
        for element, prefix in zip(elements, prefixes, strict=True)
    ]


def _find_outermost_machines(element: Element) -> Iterator[Element]:
    if element.get("type") == "Machine":
        yield element
        return
    for child in element.select("object"):
        yield from _find_outermost_machines(child)
