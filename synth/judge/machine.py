"""Find the machine that a file was made on: as it was named, from the dump beside the file, or the
machine at hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...topo.errors import InputError, TopoplanError
from ...topo.graph import Topology
from ...topo.resolve import LOCAL
from ..machine import load_for_planning
from .found import Reading

_SUFFIXES = (
    ".graph.xml",
    ".graphs.xml",
    "-graph.xml",
    "_graph.xml",
    ".xml",
    ".log",
    ".txt",
    ".out",
    ".json",
    "",
)
_BESIDE = (".topology.xml", ".topo.xml", "-topology.xml", "-topo.xml", "_topology.xml", "_topo.xml")
_MOST_FILES = 200
_SNIFF_BYTES = 64 * 2**10


@dataclass(frozen=True)
class Machine:
    """A machine, or None where none is known, and in words where it is from, or why there is none.

    `argument` is what --topology would be for it.
    """

    topology: Topology | None
    source: str
    argument: str


class Machines:
    """Finds machines of files, each read once: `named` by --topology, or `given` among the
    files.
    """

    def __init__(self, named: str | None, given: list[str]) -> None:
        self.named, self.given = named, given
        self._known: dict[str, Machine] = {}

    def find(self, reading: Reading) -> Machine:
        """Return the machine of a file. Raises InputError where one was named, or lies beside, that
        cannot be read.
        """
        if self.named is not None:
            return self._load(self.named, "--topology")
        if self.given:
            return self._load(self.given[0], "given with the files")
        beside = _find_beside(reading)
        if beside is not None:
            return self._load(beside, "beside the file")
        if LOCAL not in self._known:
            try:
                topology, _ = load_for_planning(LOCAL)
                none = None if topology.ranks else "this machine has no GPU"
            except TopoplanError as error:
                topology, none = None, str(error)
            if none:
                self._known[LOCAL] = Machine(None, f"{none}; name the machine by --topology", LOCAL)
            else:
                self._known[LOCAL] = Machine(topology, "this machine, as no other was named", LOCAL)
        return self._known[LOCAL]

    def _load(self, argument: str, source: str) -> Machine:
        if argument not in self._known:
            topology, _ = load_for_planning(argument)
            self._known[argument] = Machine(topology, source, argument)
        return self._known[argument]


def is_topology_file(name: str) -> bool:
    """Return whether a file is a dump of a topology (NCCL_TOPO_DUMP_FILE)."""
    try:
        with Path(name).open("rb") as file:
            start = file.read(_SNIFF_BYTES)
    except (OSError, ValueError):
        return False
    return re.match(rb"\s*(?:<\?.*?\?>\s*|<!--.*?-->\s*)*<system\b", start, re.DOTALL) is not None


def _find_beside(reading: Reading) -> str | None:
    """Return the name of the topology beside a file: of the same stem, the one that its text names,
    or for a graph file the only one in its folder. InputError where there are several.
    """
    path = Path(reading.where)
    for suffix in _SUFFIXES:
        if path.name.endswith(suffix):
            stem = path.name[: len(path.name) - len(suffix)]
            for ending in _BESIDE:
                candidate = path.with_name(stem + ending)
                if candidate != path and candidate.is_file():
                    return str(candidate)
    for name in reading.topology_files:
        candidate = path.with_name(Path(name).name)
        if candidate.is_file() and is_topology_file(str(candidate)):
            return str(candidate)
    if not reading.is_graph_file:
        return None
    try:
        files = sorted(x for x in path.parent.glob("*.xml") if x != path)[:_MOST_FILES]
    except OSError:
        return None
    dumps = [str(x) for x in files if is_topology_file(str(x))]
    if len(dumps) > 1:
        raise InputError(
            f"{reading.where}: {len(dumps)} topologies lie beside it "
            f"({', '.join(Path(x).name for x in dumps[:3])}"
            f"{' ...' if len(dumps) > 3 else ''}); say by --topology which is its machine's"
        )
    return dumps[0] if dumps else None
