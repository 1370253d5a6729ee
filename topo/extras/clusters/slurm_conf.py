"""Read Slurm's topology.conf: a tree of switches (topology/tree) or blocks (topology/block).

The output of `scontrol show topology` is read, too. The result is a Cluster: hosts in the file's
order, and the switches above them.
"""

import re
from collections.abc import Iterator
from itertools import pairwise, product
from math import prod

from ...errors import InputError
from .cluster import MAX_HOSTS, Cluster

CONF, YAML = "Slurm's topology.conf", "Slurm's topology.yaml"
YAML_START = re.compile(r"(?:\s|#[^\n]*(?:\n|$)|---[^\n]*(?:\n|$))*-\s+topology\s*:")
CONF_START = re.compile(
    r"(?:\s|#[^\n]*(?:\n|$))*(SwitchName|BlockName|BlockSizes)\s*=", re.IGNORECASE
)
# A line of it in a document: in a fence, quoted, or below a prompt.
_LINE_INSIDE = re.compile(
    r"[ \t>]{0,40}(?P<line>(?:SwitchName|BlockName)\s{0,9}=.{0,4000}?"
    r"(?:\b(?:Nodes|Switches)\s{0,9}=.*|\\)|BlockSizes\s{0,9}=.*)",
    re.IGNORECASE,
)
_FIELD = re.compile(r"(\w+)\s*=\s*(\S+)\s*")
# Keyed by the lower-case first word of a line: Slurm's spelling of it, and the line's other fields.
_LINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "switchname": ("SwitchName", ("nodes", "switches", "linkspeed", "level")),
    "blockname": ("BlockName", ("nodes", "blockindex", "blocksize")),
    "blocksizes": ("BlockSizes", ()),
}
# Parts of a host list: text with an optional bracket, and a range in a bracket.
_PIECE = re.compile(r"([^\[\],]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_COMMA = re.compile(r",(?![^\[\]]*\])")  # outside brackets

# A switch, the lists of hosts and of switches below it, if any, and the place in the file.
SwitchRow = tuple[str, "str | None", "str | None", str]


def looks_like(text: str) -> bool:
    """Return whether a text begins like topology.conf, or contains lines of it."""
    return CONF_START.match(text) is not None or _find_lines(text) is not None


def _find_lines(text: str) -> str | None:
    """Return the lines of topology.conf in a document, at their numbers; None without any."""
    found: list[str] = []
    for line in text.splitlines():
        match = _LINE_INSIDE.fullmatch(line.rstrip())
        is_continued = bool(found) and found[-1].endswith("\\")
        found.append(match["line"] if match else line.strip(" \t>") if is_continued else "")
    return "\n".join(found) if any(found) else None


def read_conf(text: str, where: str) -> Cluster:
    """Read Slurm's topology.conf, also within a document.

    Raise InputError that names the file, `where`, and the line.
    """
    if CONF_START.match(text) is None:
        text = _find_lines(text) or text
    cluster = Cluster(CONF, where)
    switches: list[SwitchRow] = []
    blocks: list[str] = []
    sizes: list[int] = []
    for place, kind, fields in _read_lines(text, where):
        if kind == "blocksizes":
            sizes = read_block_sizes(fields[kind].split(","), place)
            continue
        name = fields[kind]
        blocks += [name] if kind == "blockname" else []
        if not fields.keys() & {"nodes", "switches"}:
            raise InputError(
                f"{place}: {_LINES[kind][0]}={name} names nothing below it; expected Nodes= or "
                "Switches="
            )
        # scontrol lists the hosts below switches at all levels above
        hosts = None if "switches" in fields and "level" in fields else fields.get("nodes")
        switches.append((name, hosts, fields.get("switches"), place))
    add_switches(cluster, switches)
    if blocks and len(blocks) < len(cluster.above):
        raise InputError(
            f"{where}: SwitchName and BlockName in one file; it is of topology/tree or of "
            "topology/block"
        )
    if blocks:
        join_blocks(cluster, blocks, sizes)
    return cluster.finish()


def add_switches(cluster: Cluster, switches: list[SwitchRow]) -> None:
    """Add switches with the hosts and switches below them.

    A row is a switch, the host lists of its hosts and of the switches below it (None if there are
    none), and its place in the file. Raise InputError for a switch that is there twice, and for one
    below another that no line describes.
    """
    for name, hosts, _, place in switches:
        cluster.add_switch(name, place, once=True)
        for host in () if hosts is None else expand_hostlist(hosts, place):
            cluster.add_host(host, name, place)
    for parent, _, children, place in switches:
        for name in () if children is None else expand_hostlist(children, place):
            if name not in cluster.above:
                raise InputError(
                    f"{place}: switch {parent} has {name!r:.60} below it, which no line "
                    "describes; add it"
                )
            cluster.put_below(name, parent, place)


def read_block_sizes(texts: list[str], place: str) -> list[int]:
    """Parse the sizes of blocks, and of blocks of blocks, in hosts.

    Raise InputError, which names the `place` in the file, unless each is a multiple of the one
    before.
    """
    sizes = [int(text) if re.fullmatch(r"\s*[1-9]\d{0,6}\s*", text) else 0 for text in texts]
    if not all(sizes) or any(b % a or a == b for a, b in pairwise(sizes)):
        raise InputError(
            f"{place}: block sizes are {','.join(texts)!r:.60}; expected numbers of hosts such as "
            "4,16"
        )
    return sizes


def join_blocks(cluster: Cluster, blocks: list[str], sizes: list[int]) -> None:
    """Put a switch above each group of successive blocks, and one above all, in `cluster`.

    `blocks` are switches in the file's order. `sizes` are in hosts: that of a block, then those of
    groups, each a multiple of the one before.
    """
    cluster.notes.append(
        "blocks are taken as hosts behind one network switch each; the file does not say what "
        "joins their GPUs"
    )
    level = blocks
    for number, size in enumerate(sizes[1:]):
        each = size // sizes[number]
        groups = [level[first : first + each] for first in range(0, len(level), each)]
        level = [f"blocks-of-{size}-{i}" for i in range(len(groups))]
        for name, group in zip(level, groups, strict=True):
            cluster.add_switch(name, cluster.where, once=True)
            for below in group:
                cluster.put_below(below, name, cluster.where)
    cluster.join_tops()


def _read_lines(text: str, where: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the place, first field and fields of each line, continued lines joined.

    The names of fields are in lower case.
    """
    begun, whole = 0, ""
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        line = raw.partition("#")[0].strip()
        begun = begun if whole else number
        if line.endswith("\\"):
            whole += line[:-1] + " "
            continue
        whole += line
        if whole:
            yield _read_fields(whole, f"{where}: line {begun}")
        whole = ""


def _read_fields(line: str, place: str) -> tuple[str, str, dict[str, str]]:
    fields: dict[str, str] = {}
    at = 0
    while at < len(line):
        match = _FIELD.match(line, at)
        if match is None:
            raise InputError(
                f"{place}: {line[at:]!r:.60} is not Name=value; expected such as SwitchName=s1 "
                "Nodes=n[1-4]"
            )
        if match[1].lower() in fields:
            raise InputError(f"{place}: {match[1]} is there twice; give each once")
        fields[match[1].lower()] = match[2]
        at = match.end()
    kind = next(iter(fields))
    if kind not in _LINES:
        raise InputError(
            f"{place}: {line!r:.60} begins with neither SwitchName= nor BlockName= nor BlockSizes="
        )
    written, others = _LINES[kind]
    for name in list(fields)[1:]:
        if name not in others:
            raise InputError(
                f"{place}: {name}= is no field of a {written} line; correct or remove it"
            )
    return place, kind, fields


# -- host lists ----------------------------------------------------------------


def expand_hostlist(text: str, place: str) -> list[str]:
    """Expand Slurm's host list: `tux[0-3,12,18-20],login` names nine hosts, in order.

    Raise InputError that names the place for a malformed list.
    """
    names: list[str] = []
    if not text.strip():
        raise _make_list_error(text, place)
    for part in map(str.strip, _COMMA.split(text)):
        pieces: list[list[str]] = []
        at = 0
        while at < len(part):
            match = _PIECE.match(part, at)
            if match is None or match.end() == at:
                raise _make_list_error(part, place)
            pieces.append([match[1]])
            if match[2] is not None:
                pieces.append(_expand_ranges(match[2], part, place))
            at = match.end()
        if len(names) + prod(map(len, pieces)) > MAX_HOSTS:
            raise InputError(
                f"{place}: {part!r:.60} stands for more than {MAX_HOSTS} names; give a part of "
                "the cluster"
            )
        names += map("".join, product(*pieces))
    return names


def _expand_ranges(text: str, part: str, place: str) -> list[str]:
    numbers: list[str] = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None or not 0 <= int(match[2] or match[1]) - int(match[1]) < MAX_HOSTS:
            raise _make_list_error(part, place)
        run = range(int(match[1]), int(match[2] or match[1]) + 1)
        numbers += [str(number).zfill(len(match[1])) for number in run]
    return numbers


def _make_list_error(text: str, place: str) -> InputError:
    return InputError(
        f"{place}: {text!r:.60} is no list of names; expected for example node[01-04,7] or a,b"
    )
