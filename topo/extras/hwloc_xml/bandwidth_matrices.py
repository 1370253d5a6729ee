"""Read hwloc's bandwidth matrices: NVLink and xGMI links of GPUs, NVSwitches and CPUs.

A matrix holds MB/s (1e6 bytes per second) in one direction, row to column. Rows and columns are
objects (XML elements for parts of the machine) by their gp_index, hwloc's number for them. Its
diagonal is meaningless, and it contains only the links that GPUs report: links between NVSwitches
are missing.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from ...boards import is_mesh_of_dies
from ...formats.safe_xml import Element
from ...graph import Device, Link, both_directions
from ...hardware import LATENCY_us
from ...names import join_first
from ...notes import assumed
from .cpus import Cpus
from .objects import HwlocMachine
from .pci import HwlocGpu, find_gpu_board

# Objects of a matrix, which has the square of this number of values.
MAX_OBJECTS = 512
_MAX_MBps = 10**9
_KINDS: Mapping[str, str] = {"NVLinkBandwidth": "nvlink", "XGMIBandwidth": "xgmi"}
_HOPS = "XGMIHops"
_NOT_LINKS = ("", "NUMALatency", "NUMABandwidth")
_INDEX = re.compile(r"(?:[A-Za-z][A-Za-z0-9]*:)?([0-9]{1,19})")
_CONSTANT_XGMI_MBps = 100_000  # hwloc's own constant for any xGMI link, not a measured rate
# Pairs that a note names before "and 5 more".
_MAX_NAMED = 2


@dataclass(frozen=True)
class BandwidthMatrix:
    """A matrix: the gp_index of its objects, and its values other than 0 off the diagonal.

    The keys of `values` are (source, destination) by gp_index. Values are MB/s, or hops in
    XGMIHops. `element` is for errors.
    """

    objects: tuple[int, ...]
    values: Mapping[tuple[int, int], int]
    element: Element


def read_matrices(root: Element, machine: HwlocMachine) -> dict[str, BandwidthMatrix]:
    """Return the matrices NVLinkBandwidth, XGMIBandwidth and XGMIHops that the file has, by name.

    `root` is the file's outermost element. Others are noted in `machine.notes`. Raise InputError
    for incomplete or malformed ones.
    """
    matrices: dict[str, BandwidthMatrix] = {}
    for element in root:
        name = element.get("name") or ""
        if element.tag not in ("distances2", "distances2hetero") or name in _NOT_LINKS:
            continue
        if name not in (*_KINDS, _HOPS):
            machine.notes.add(f"matrix {name[:40]}", "not read")
        elif name in matrices:
            machine.notes.add(f"matrix {name}", "there twice; the first is read")
        else:
            matrices[name] = _read_matrix(element)
    return matrices


def _read_matrix(element: Element) -> BandwidthMatrix:
    size = element.get_integer("nbobjs", minimum=1, maximum=MAX_OBJECTS)
    names = _read_words(element, "indexes")
    values = _read_words(element, "u64values")
    if size is None or len(names) != size or len(values) != size * size:
        raise element.make_error(
            f"nbobjs={size}, {len(names)} indexes and {len(values)} values: expected as many "
            "indexes as objects and their square of values; is the file whole?"
        )
    numbers = tuple(int(match[1]) for name in names if (match := _INDEX.fullmatch(name)))
    if len(set(numbers)) < size:
        wrong = next((name for name in names if not _INDEX.fullmatch(name)), "one twice")
        raise element.make_error(
            f"indexes hold {wrong[:40]!r}: expected the gp_index of different objects, such as "
            "OSDev:802"
        )
    nonzero: dict[tuple[int, int], int] = {}
    for i, text in enumerate(values):
        if not text.isdecimal() or len(text) > 20 or int(text) > _MAX_MBps:
            raise element.make_error(
                f"u64values hold {text[:40]!r}: expected whole numbers of MB/s from 0 to "
                f"{_MAX_MBps}"
            )
        if int(text) and i // size != i % size:
            nonzero[numbers[i // size], numbers[i % size]] = int(text)
    return BandwidthMatrix(numbers, nonzero, element)


def _read_words(element: Element, tag: str) -> list[str]:
    return " ".join(child.text for child in element if child.tag == tag).split()


@dataclass(eq=False)
class MatrixLinkReader:
    """Reader of the links in one machine's matrices, to be used once.

    `gpu_by_gp` and `switches` (NVSwitches) are by gp_index; `links` are those read so far. Doubts
    are noted in `machine.notes`.
    """

    machine: HwlocMachine
    cpus: Cpus
    gpu_by_gp: Mapping[int, HwlocGpu]
    switches: Mapping[int, Device]
    links: list[Link] = field(default_factory=list)

    def read(self, matrices: Mapping[str, BandwidthMatrix]) -> list[Link]:
        """Return the links in the matrices, and assumed ones between groups of NVSwitches.

        Raise InputError if xGMI seems to join GPUs to more others than they have links for.
        """
        hops = matrices[_HOPS].values if _HOPS in matrices else {}
        for name, kind in _KINDS.items():
            if name in matrices:
                self._read_links(matrices[name], name, kind, hops if kind == "xgmi" else {})
        if "NVLinkBandwidth" in matrices:
            self.links += join_switch_groups(
                self.machine, [device.id for device in self.switches.values()], self.links
            )
        return self.links

    @cached_property
    def _gpu_by_id(self) -> Mapping[str, HwlocGpu]:
        return {gpu.id: gpu for gpu in self.gpu_by_gp.values()}

    @cached_property
    def _device_ids(self) -> Mapping[int, str]:
        """The ids of GPUs and NVSwitches by gp_index."""
        return {number: switch.id for number, switch in self.switches.items()} | {
            number: gpu.id for number, gpu in self.gpu_by_gp.items()
        }

    def _read_links(
        self, matrix: BandwidthMatrix, name: str, kind: str, hops: Mapping[tuple[int, int], int]
    ) -> None:
        # one unknown number puts the whole matrix in doubt: it may belong to another machine
        unknown = [n for n in matrix.objects if n not in self.machine.by_gp]
        if unknown:
            self.machine.notes.add(
                f"matrix {name}",
                f"names object {unknown[0]}, which is not in the file; the matrix is left out",
            )
            return
        rates: dict[tuple[str, str], int] = {}
        for pair, value in matrix.values.items():
            ends = self._find_ends(*pair)
            if ends is None:
                continue
            if hops.get(pair, 1) > 1:
                self.machine.notes.add(
                    " - ".join(sorted(ends)), f"{hops[pair]} hops apart; no link"
                )
                continue
            earlier = rates.get(ends, 0)
            # parts of a GPU share its xGMI
            rates[ends] = max(earlier, value) if kind == "xgmi" else earlier + value
        links = list(self._build_links(rates, name, kind))
        if kind == "xgmi" and set(rates.values()) == {_CONSTANT_XGMI_MBps}:
            self._check_mesh(rates, matrix.element)
            links = [self._rate_constant(link, name) for link in links]
        self.links += links

    def _check_mesh(self, rates: Iterable[tuple[str, str]], element: Element) -> None:
        """Raise InputError if links join all of eight dies that have too few links for it.

        ROCm SMI counts one hop also over other GPUs (open-mpi/hwloc#775).
        """
        near = Counter(src for src, _ in rates)
        for gpu, count in near.items():
            board = find_gpu_board(self._gpu_by_id[gpu]) if gpu in self._gpu_by_id else None
            if board is not None and is_mesh_of_dies(board, len(near), count):
                raise element.make_error(
                    f"joins each {board.name} to {count} others, which ROCm SMI says also of GPUs "
                    "joined over others, so which have links of their own is not known; give "
                    "rocm-smi --showtopo, with its weights"
                )

    def _rate_constant(self, link: Link, name: str) -> Link:
        """Return a link whose rate is hwloc's constant with that of the GPU's board, if known."""
        gpu = self._gpu_by_id.get(link.src) or self._gpu_by_id.get(link.dst)
        board = find_gpu_board(gpu) if gpu is not None else None
        doubt = "says 100 GB/s of every link, which hwloc writes whatever the link; not measured"
        if board is None or board.kind != "xgmi" or not board.wires:
            self.machine.notes.add(f"matrix {name}", doubt)
            return replace(link, source=assumed("what hwloc writes of any xGMI link"))
        rate = board.pair_wires * board.wire_GBps
        taken = f"{doubt}; taken as {float(rate):g} GB/s, as {board.name} has"
        self.machine.notes.add(f"matrix {name}", taken)
        how = assumed(f"xGMI links of an {board.name}")
        return replace(link, bandwidth_GBps=rate, count=board.pair_wires, source=how)

    def _find_ends(self, row: int, column: int) -> tuple[str, str] | None:
        """Return the ids of two objects' devices, None if no link can join them.

        One of them must be a GPU or NVSwitch; the other may be a CPU.
        """
        first, second = self._device_ids.get(row), self._device_ids.get(column)
        if first is not None or second is not None:
            first = first or self._find_cpu(row, second or "")
            second = second or self._find_cpu(column, first or "")
        return None if first is None or second is None or first == second else (first, second)

    def _find_cpu(self, number: int, other: str) -> str | None:
        """Return the CPU of an object; if several, the one near the GPU at the other end."""
        element = self.machine.by_gp[number]
        if element.get("type") in ("Bridge", "PCIDev", "OSDev", "Misc"):
            self.machine.notes.add(
                other, f"has a link to object {number}, a {element.get('type')} that is no GPU"
            )
            return None
        near = self.cpus.find_near(element)
        if other in self._gpu_by_id and len(near) > 1:
            near_gpu = self.cpus.find_near(self._gpu_by_id[other].function.near)
            near = [node for node in near_gpu if node in near] or near
        if len(near) > 1:
            self.machine.notes.add(
                other,
                f"its links to the CPUs lead to several NUMA nodes; taken for {near[0].device.id}",
            )
        return near[0].device.id

    def _build_links(
        self, rates: Mapping[tuple[str, str], int], name: str, kind: str
    ) -> Iterator[Link]:
        """Yield a link for each rate, for both directions if they are equal; note unequal ones."""
        uneven: list[str] = []
        left = dict(rates)
        switch_ids = {device.id for device in self.switches.values()}
        for (src, dst), value in rates.items():
            back = rates.get((dst, src))
            link = Link(
                src,
                dst,
                Fraction(value, 1000),
                LATENCY_us["nvswitch" if {src, dst} & switch_ids else kind],
                kind,
                self._count_nvlinks(src, dst, value) if kind == "nvlink" else 1,
                f"hwloc XML, {name}",
            )
            if back != value:
                uneven.append(f"{src} -> {dst} {value} MB/s, back {back or 0}")
                yield link
            elif left.pop((src, dst), None):
                del left[dst, src]
                yield from both_directions(link)
        if uneven:
            self.machine.notes.add(
                f"matrix {name}",
                f"differs by direction: {join_first(uneven, _MAX_NAMED, '; ')}; taken as it says",
            )

    def _count_nvlinks(self, src: str, dst: str, value: int) -> int:
        """Return the number of NVLinks that a rate represents, by the GPU's board.

        For an unknown one a link is taken to carry 25 GB/s, or 20 GB/s if only that divides the
        rate. hwloc rounds the rate of each link down to whole MB/s.
        """
        gpu = self._gpu_by_id.get(src) or self._gpu_by_id.get(dst)
        board = find_gpu_board(gpu) if gpu is not None else None
        by_board = [int(board.wire_GBps * 1000)] if board is not None and board.wires else []
        return next((value // x for x in (*by_board, 25_000, 20_000) if value % x == 0), 1)


# -- links that GPUs do not report


def join_switch_groups(machine: HwlocMachine, switches: list[str], links: list[Link]) -> list[Link]:
    """Return assumed links between two equal, unconnected groups of NVSwitches (DGX-2).

    `switches` are the ids of all NVSwitches, `links` the NVLinks of the GPUs. Each switch is joined
    to its counterpart, in the order of addresses, with the total rate of its GPUs: the links
    between the groups then limit nothing, which is how NCCL counts them. Both the assumption and
    other groups, which are not joined, are noted in `machine.notes`.
    """
    groups = _group_switches(switches, links)
    if len(groups) < 2:
        return []
    sizes = " and ".join(str(len(group)) for group in groups)
    if len(groups) > 2 or len(groups[0]) != len(groups[1]):
        machine.notes.add(
            "NVSwitches",
            f"groups of {sizes} with no link between them in the file, which cannot show such "
            "links; left apart",
        )
        return []
    machine.notes.add(
        "NVSwitches",
        f"two groups of {sizes} with no link between them in the file, which cannot show such "
        "links; assumed: each is joined"
        " to one of the other group with all the bandwidth that its GPUs bring",
    )
    rates: dict[str, Fraction] = defaultdict(Fraction)
    counts: Counter[str] = Counter()
    for link in links:
        rates[link.dst] += link.bandwidth_GBps
        counts[link.dst] += link.count
    source = assumed("NVSwitches of one machine are joined without a bottleneck")
    joined: list[Link] = []
    for a, b in zip(*groups, strict=True):
        rate, count = min(rates[a], rates[b]), min(counts[a], counts[b])
        joined += both_directions(Link(a, b, rate, LATENCY_us["nvswitch"], "nvlink", count, source))
    return joined


def _group_switches(switches: list[str], links: list[Link]) -> list[list[str]]:
    """Return the groups of switches that NVLinks connect, in the order of `switches`."""
    group_of = {name: {name} for name in switches}
    for link in links:
        src, dst = (group_of.setdefault(end, {end}) for end in (link.src, link.dst))
        if link.kind == "nvlink" and src is not dst:
            src |= dst
            group_of |= dict.fromkeys(dst, src)
    groups = {id(group_of[name]): group_of[name] for name in switches}
    return [[name for name in switches if name in group] for group in groups.values()]
