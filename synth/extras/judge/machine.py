"""The machine that a file was made on, and the GPU of each rank there."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from ....topo.between_cpus import follow_era
from ....topo.boards import Board, find_board, find_mentioned, get_board
from ....topo.derived.hosts import group_by_host
from ....topo.derived.stated import state_rates
from ....topo.errors import InputError, TopoplanError
from ....topo.files import read_start
from ....topo.formats.pasted import find_xml
from ....topo.graph import Device, Link, Topology
from ....topo.hardware import PcieLink
from ....topo.loader.resolve import LOCAL, load, load_for_planning
from ....topo.notes import assumed
from ....topo.presets import PRESETS
from .file_contents import HAS_RESULTS, FileContents, Location

# Usual file name endings of a graph dump or a log.
_FILE_ENDINGS = (
    *(".graph.xml", ".graphs.xml", "-graph.xml", "_graph.xml"),
    *(".xml", ".log", ".txt", ".out", ".json", ""),
)
# Endings of a topology file next to a file of the same stem.
_TOPOLOGY_ENDINGS = (
    *(".topology.xml", ".topo.xml", "-topology.xml", "-topo.xml", "_topology.xml", "_topo.xml"),
)
# Most XML files of a folder to open in search of a topology: enough for dumps, not for an archive.
_MAX_FILES = 200
# Bytes to read to recognize a topology: its root element may follow long comments.
_SNIFF_BYTES = 64 * 2**10


# The kind of link whose rate a GPU's name tells.
_PCIE = "pcie"


@dataclass(frozen=True)
class JudgedMachine:
    """The topology that a file is judged on, and where it is from.

    `topology` is None if none was found. `source` says where the topology is from, or why there is
    none. `argument` is the name of the machine on the command line. `pcie` is the PCIe
    link that is assumed where the topology's file states none; None if no such link is assumed.
    """

    topology: Topology | None
    source: str
    argument: str
    pcie: PcieLink | None = None

    def assume_pcie(self, link: PcieLink, reason: str) -> "JudgedMachine":
        """Return the machine with its assumed PCIe rates replaced by that of `link`.

        Return the machine itself if no PCIe rate in it is assumed. `reason` is text for the source.
        """
        if self.topology is None or not any(map(_is_open, self.topology.links)):
            return self
        source = assumed(f"Gen{link.generation} x{link.width}, {reason}")
        (topology,) = state_rates([self.topology], {_PCIE: link.bandwidth_GBps}, source)
        return replace(self, topology=follow_era(topology, link.generation), pcie=link)

    def assume_board(self, board: Board, reason: str) -> "JudgedMachine":
        """Return the machine with its assumed rates of NVLink, xGMI and PCIe set to a board's.

        `reason` is text for the source of the rates.
        """
        links = self.topology.links if self.topology is not None else ()
        machine = self
        if board.wires and any(link.kind == board.kind and link.is_assumed for link in links):
            source = assumed(f"{float(board.wire_GBps):g} GB/s a link, {reason}")
            rate = {board.kind: board.wire_GBps}
            (topology,) = state_rates([t for t in (self.topology,) if t], rate, source)
            machine = replace(self, topology=topology)
        return machine.assume_pcie(board.pcie, reason)

    def raise_pcie(self) -> "JudgedMachine | None":
        """Return the machine with the next faster PCIe assumed.

        Return None if no PCIe rate is assumed, or none is faster.
        """
        links = self.topology.links if self.topology is not None else ()
        rates = [link.bandwidth_GBps for link in links if _is_open(link)]
        faster = (PcieLink(generation, 16) for generation in range(3, 7))
        link = next((x for x in faster if rates and x.bandwidth_GBps > min(rates)), None)
        if link is None:
            return None
        return self.assume_pcie(link, "as less was ruled out by a measurement")


@dataclass(frozen=True)
class RankMap:
    """The GPU of each rank of a file, and how it was found in words.

    `topology` has only the GPUs in use; `gpu_of[rank]` is a GPU's number among them. `whole` is the
    machine with all GPUs, and `in_use` the numbers there of those in use, ascending.
    """

    topology: Topology
    gpu_of: tuple[int, ...]
    how: str
    whole: Topology
    in_use: tuple[int, ...]


class Machines:
    """Finder and cache of the machines that files are from.

    A file's machine is the one `named` by the user, else the first of the topology files `given`
    among the files, else the topology next to the file, else the one in the file itself, else the
    local machine. `how_named` is the `source` of a named one. `rates` (GB/s by kind of link)
    replace assumed ones, as in `state_rates`. `narrow` returns the part of a machine that files are
    from.
    """

    def __init__(
        self,
        named: str | None,
        given: list[str],
        how_named: str = "as named",
        rates: Mapping[str, Fraction] | None = None,
        *,
        narrow: Callable[[Topology], Topology] = lambda topology: topology,
    ) -> None:
        self.named, self.given, self.how_named, self.rates = named, given, how_named, rates or {}
        self.narrow = narrow
        self._cache: dict[str, JudgedMachine] = {}

    def find(self, contents: FileContents) -> JudgedMachine:
        """Return the machine that a file is from; without a topology if none is found.

        Where the names of GPUs in the file tell rates that the topology leaves open, they are
        assumed. Raise InputError if its topology cannot be read.
        """
        machine = self._find(contents)
        models = sorted({x.model for x in contents.locations.values() if x.model})
        boards = {find_board(model) for model in models}
        board = boards.pop() if len(boards) == 1 else None
        return machine if board is None else machine.assume_board(board, f"by the GPU: {models[0]}")

    def _find(self, contents: FileContents) -> JudgedMachine:
        if self.named is not None:
            return self._load(self.named, self.how_named)
        if self.given:
            return self._load(self.given[0], "given with the files")
        if beside := _find_beside(contents):
            return self._load(beside, "beside the file")
        if contents.machine is not None:
            topology = self._plan_for(contents.machine)
            return JudgedMachine(topology, contents.machine_source, contents.where)
        machine = self._find_local()
        if machine.topology is not None:
            return machine
        return replace(machine, source=machine.source + _propose(contents))

    def _find_local(self) -> JudgedMachine:
        """Return the local machine, without a topology if it has no GPU."""
        try:
            machine = self._load(LOCAL, "this machine, as no other was named")
            if machine.topology is None or machine.topology.ranks:
                return machine
            why_not = "this machine has no GPU"
        except TopoplanError as error:
            why_not = str(error)
        why_not = f"{why_not}; name the topology of the machine that the file is from"
        self._cache[LOCAL] = JudgedMachine(None, why_not, LOCAL)
        return self._cache[LOCAL]

    def _load(self, argument: str, source: str) -> JudgedMachine:
        if argument not in self._cache:
            self._cache[argument] = JudgedMachine(self._plan_for(load(argument)), source, argument)
        return self._cache[argument]

    def load_named(self) -> Topology:
        """Return the machine that the user named, or else the local one, as files are judged on it.

        Raise InputError if it has fewer than two GPUs, among which nothing is sent.
        """
        topology = self._load(self.named or LOCAL, self.how_named).topology
        if topology is None or len(topology.ranks) < 2:
            raise InputError(
                f"{self.named or LOCAL}: fewer than two GPUs, so nothing is sent; name another "
                "machine",
                parameter="topology",
            )
        return topology

    def _plan_for(self, topology: Topology) -> Topology:
        part = self.narrow(topology)
        return load_for_planning(state_rates([part], self.rates)[0])[0]


def _propose(contents: FileContents) -> str:
    """Return words that propose a preset with as many GPUs of the same kind on a host; "" if there
    is none, or the file does not name the GPUs.
    """
    models = {x.model for x in contents.locations.values()}
    board = find_board(models.pop() or "") if len(models) == 1 else None
    hosts = Counter(x.host for x in contents.locations.values())
    if board is None or len(set(hosts.values())) != 1:
        return ""
    named = re.compile(rf"(?<![\w-]){re.escape(board.name)}(?![\w-])")
    for preset in PRESETS.values():
        if named.search(preset.description) and preset.gpus((1,)) == max(hosts.values()):
            boxes = f":{len(hosts)}" if len(hosts) > 1 and preset.size == "boxes" else ""
            return f"; by its GPUs it may be {preset.name}{boxes} ({preset.description})"
    return ""


def select_box(topology: Topology) -> Topology:
    """Return the first host of a machine alone, with the NVSwitches that its GPUs are linked to.

    Raise InputError if the hosts have different numbers of GPUs, so that no one stands for all.
    """
    blocks = group_by_host([topology.by_id[ident] for ident in topology.ranks])
    if len(blocks) < 2:
        return topology
    counts = sorted({len(block) for block in blocks})
    if len(counts) > 1:
        raise InputError(
            f"{topology.name}: its hosts have {' or '.join(map(str, counts))} GPUs, so no one "
            "stands for all; name the topology of the one that ran it",
            parameter="topology",
        )
    own = {_name_host(topology.by_id[topology.ranks[i]]) for i in blocks[0]}
    kept = [d for d in topology.devices if _name_host(d) in own or d.family == "nvswitch"]
    ids = {d.id for d in kept}
    links = [x for x in topology.links if {x.src, x.dst} <= ids]
    linked = {end for x in links for end in (x.src, x.dst) if x.dst in topology.ranks} | own
    return replace(
        topology,
        name=f"{topology.name}, one of {len(blocks)} hosts",
        devices=tuple(d for d in kept if _name_host(d) in own or d.id in linked),
        links=tuple(links),
    )


def _name_host(device: Device) -> object:
    """Return what tells a device's host, as `group_by_host` has it; None if nothing does."""
    prefix = device.id.partition("/")[0] if "/" in device.id else None
    return device.extra.get("host", device.extra.get("box", prefix))


def _is_open(link: Link) -> bool:
    return link.kind == _PCIE and link.is_assumed


def describe_other_gpus(topology: Topology, locations: Mapping[int, Location]) -> str | None:
    """Return a sentence if a file's GPUs are of another architecture than the topology's.

    Return None if they are not, or if one of the two architectures is unknown. `locations` have the
    names of the file's GPUs. The topology's architecture is known by the name or the compute
    capability of its first GPU, else by the boards that its source mentions.
    """
    models = sorted({location.model for location in locations.values() if location.model})
    named = {_Architecture.of(board) for model in models if (board := find_board(model))}
    own = _list_architectures(topology)
    if not named or not own or named & own:
        return None
    what = " or ".join(sorted(map(str, own)))
    return (
        f"the file's GPUs are {', '.join(models[:3])}, and those of {topology.name} are of another "
        f"architecture ({what})"
    )


class _Architecture(NamedTuple):
    """The architecture of a GPU: its compute capability times ten, or AMD's name of it."""

    sm: str
    gcn: str

    @classmethod
    def of(cls, board: Board) -> "_Architecture":
        return cls(str(board.sm or ""), board.gcn)

    def __str__(self) -> str:
        return self.gcn or f"compute capability {self.sm[:-1]}.{self.sm[-1:]}"


def _list_architectures(topology: Topology) -> set[_Architecture]:
    first = topology.by_id[topology.ranks[0]].extra if topology.ranks else {}
    board = find_board(str(first.get("name", "")))
    if board is not None:
        return {_Architecture.of(board)}
    if first.get("sm") or first.get("gcn"):
        return {_Architecture(str(first.get("sm") or ""), str(first.get("gcn") or ""))}
    return {_Architecture.of(get_board(name)) for name in find_mentioned(topology.source or "")}


def is_topology_file(name: str) -> bool:
    """Return whether a file is a dump of a topology (NCCL_TOPO_DUMP_FILE), maybe with text around.

    A file that cannot be read is none.
    """
    start = read_start(name, _SNIFF_BYTES)
    if re.match(rb"\s*(?:<\?.*?\?>\s*|<!--.*?-->\s*)*<system\b", start, re.DOTALL) is not None:
        return True
    text = start.decode(errors="replace")
    return (
        find_xml(text, "system") is not None
        and find_xml(text, "graphs") is None
        and HAS_RESULTS.search(text) is None
    )


def _find_beside(contents: FileContents) -> str | None:
    """Return the name of the topology file next to a file; None if there is none.

    It is the one of the same stem, the one that the text of the file names or, for a graph file,
    the only one in its folder. Raise InputError if there are several.
    """
    path = Path(contents.where)
    stem = next(path.name.removesuffix(end) for end in _FILE_ENDINGS if path.name.endswith(end))
    for candidate in (path.with_name(stem + ending) for ending in _TOPOLOGY_ENDINGS):
        if candidate != path and candidate.is_file():
            return str(candidate)
    for name in contents.topology_files:
        candidate = path.with_name(Path(name).name)
        if is_topology_file(str(candidate)):
            return str(candidate)
    if not contents.is_graph_file:
        return None
    try:
        files = sorted(str(x) for x in path.parent.glob("*.xml") if x != path)[:_MAX_FILES]
    except OSError:
        return None
    dumps = list(filter(is_topology_file, files))
    if len(dumps) > 1:
        names = ", ".join(Path(x).name for x in dumps[:3]) + (" ..." if len(dumps) > 3 else "")
        raise InputError(
            f"{contents.where}: {len(dumps)} topologies lie beside it ({names}); name the one of "
            "its machine",
            parameter="topology",
        )
    return dumps[0] if dumps else None


def map_ranks(
    topology: Topology, ranks: int, locations: Mapping[int, Location], where: str
) -> RankMap:
    """Return the GPU of each rank on a machine, from the locations that a file states.

    Match by PCI address, else by GPU number; if the file has neither, take GPUs in the order of
    ranks. `where` names the file in errors. Raise InputError if the topology cannot be the machine
    of these ranks.
    """
    gpus = [topology.by_id[ident] for ident in topology.ranks]
    if ranks > len(gpus):
        hosts = {location.host for location in locations.values() if location.host}
        # People leave out lines of the list, and with them hosts.
        count = len(hosts) if len(locations) == ranks else 0
        raise InputError(
            f"{where}: {ranks} ranks{f' on {count} hosts' if count > 1 else ''}, and "
            f"{topology.name} has {len(gpus)} GPU{'' if len(gpus) == 1 else 's'}: another machine, "
            "or a part of it; give the topology of all ranks (several hosts: dgx-a100:2, or "
            "topo-probe's JSON of them)",
            parameter="topology",
        )
    chosen, how = _choose_gpus(gpus, ranks, locations, topology, where)
    if len(set(chosen)) < ranks:
        raise InputError(
            f"{where}: two ranks are on one GPU of {topology.name}, which NCCL does not do: "
            "another machine; give the topology of theirs",
            parameter="topology",
        )
    return _map_to(topology, chosen, how)


def map_group(topology: Topology, group: Sequence[int], where: str) -> RankMap:
    """Return the GPU of each rank of a group that a file lists by their numbers on the machine.

    `where` names the file in errors. Raise InputError if the machine does not have one of them.
    """
    if max(group) >= len(topology.ranks):
        raise InputError(
            f"{where}: names GPU {max(group)}, and {topology.name} has 0 to "
            f"{len(topology.ranks) - 1}: another machine; give the topology of theirs",
            parameter="topology",
        )
    return _map_to(topology, list(group), "as the file lists them")


def _map_to(topology: Topology, chosen: list[int], how: str) -> RankMap:
    in_use = sorted(chosen)
    gpu_of = tuple(map(in_use.index, chosen))
    return RankMap(_drop_other_gpus(topology, in_use), gpu_of, how, topology, tuple(in_use))


def _choose_gpus(
    gpus: list[Device],
    ranks: int,
    locations: Mapping[int, Location],
    topology: Topology,
    where: str,
) -> tuple[list[int], str]:
    """Return the number of each rank's GPU in the topology, and how it was found."""
    listed = [locations.get(rank, Location()) for rank in range(ranks)]
    hosts = list(dict.fromkeys(location.host for location in listed if location.host))
    blocks = group_by_host(gpus)
    if len(hosts) > len(blocks):
        # Some logs name a single host differently on every line, so the number of hosts counts only
        # if every rank names one, or if a test lists devices, with their models.
        is_sure = all(location.host for location in listed) or any(x.model for x in listed)
        if len(blocks) == 1 and len(hosts) > 1 and is_sure:
            raise InputError(
                f"{where}: ranks on {len(hosts)} hosts "
                f"({', '.join(hosts[:3])}{' ...' if len(hosts) > 3 else ''}), and "
                f"{topology.name} has one: another machine; give the topology of all hosts",
                parameter="topology",
            )
        hosts = []
    block_of = dict(zip(hosts, blocks, strict=False)) if len(hosts) > 1 else {}

    def match(matches: Callable[[Device, Location, int], bool]) -> list[int] | None:
        """Return the only GPU that matches each rank; None if a rank matches none or several."""
        chosen = []
        for location in listed:
            among = block_of.get(location.host or "", range(len(gpus)))
            fit = [i for at, i in enumerate(among) if matches(gpus[i], location, at)]
            if len(fit) != 1:
                return None
            chosen += fit
        return chosen

    by_bus = match(lambda gpu, location, _: _has_bus(gpu, location.bus))
    if by_bus is not None:
        return by_bus, "by PCI address"
    if all(location.dev is not None for location in listed):
        by_dev = match(lambda gpu, location, at: location.dev == _number_on_host(gpu, at))
        if by_dev is not None and len(set(by_dev)) == ranks:
            is_physical = any(location.physical for location in listed)
            return by_dev, "by GPU number" + ("" if is_physical else " (CUDA's)")
        fits_one_host = ranks <= max(map(len, blocks), default=0) and len(hosts) < 2
        if fits_one_host and all(location.physical for location in listed):
            numbers = sorted({_number_on_host(gpu, at) for at, gpu in enumerate(gpus)})
            wrong = sorted({x.dev for x in listed if x.dev is not None} - set(numbers))
            if wrong:
                raise InputError(
                    f"{where}: names GPU {', '.join(f'{dev:#x}' for dev in wrong[:6])}, and "
                    f"{topology.name} has {numbers[0]:#x} to {numbers[-1]:#x}: of another machine; "
                    "give the topology of that one",
                    parameter="topology",
                )
    spanned = len({block for block, gpus_in in enumerate(blocks) if min(gpus_in) < ranks})
    if len(hosts) > spanned:
        raise InputError(
            f"{where}: ranks on {len(hosts)} hosts, and nothing says which GPUs of "
            f"{topology.name} these are; give the whole list of devices",
            parameter="topology",
        )
    some = f"taken as the first {ranks} of {len(gpus)} GPUs, as the file does not say which"
    return list(range(ranks)), "in the order of ranks" if ranks == len(gpus) else some


def count_hosts(topology: Topology) -> int:
    """Return the number of hosts that hold the GPUs of a topology."""
    return len(group_by_host([topology.by_id[ident] for ident in topology.ranks]))


def _has_bus(gpu: Device, bus: str | None) -> bool:
    """Return whether a GPU has a PCI address.

    A file may give the bus alone, or omit the function.
    """
    own = (gpu.bus_id or "").lower().split(":")
    if bus is None or len(own) != 3:
        return False
    if ":" not in bus:
        return own[1] == bus
    domain, number, device = bus.split(":")
    # Domains have four digits in some tools and eight in others.
    return [own[0].lstrip("0"), own[1]] == [domain.lstrip("0"), number] and own[2].startswith(
        device
    )


def _number_on_host(gpu: Device, at: int) -> int:
    """Return the number that the topology gives a GPU, else its position `at` on the host."""
    try:
        return int(str(gpu.extra["dev"]))
    except (KeyError, ValueError):
        return at


def _drop_other_gpus(topology: Topology, in_use: list[int]) -> Topology:
    """Return the topology without the GPUs that are not in use; unchanged if all are."""
    gone = set(topology.ranks) - {topology.ranks[i] for i in in_use}
    if not gone:
        return topology
    return replace(
        topology,
        name=f"{topology.name}, {len(in_use)} of {len(topology.ranks)} GPUs",
        devices=tuple(d for d in topology.devices if d.id not in gone),
        links=tuple(x for x in topology.links if not {x.src, x.dst} & gone),
    )
