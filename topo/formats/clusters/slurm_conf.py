"""Slurm's topology.conf: trees of switches (topology/tree), or blocks (topology/block)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from ...errors import InputError
from .cluster import Cluster, join_tops
from .hostlist import expand_hostlist

WHAT, YAML = "Slurm's topology.conf", "Slurm's topology.yaml"
_FIRST_OF_YAML = re.compile(r"(?:\s|#[^\n]*(?:\n|$)|---[^\n]*(?:\n|$))*-\s+topology\s*:")
_FIRST = re.compile(r"(?:\s|#[^\n]*(?:\n|$))*(SwitchName|BlockName|BlockSizes)\s*=", re.IGNORECASE)
_FIELD = re.compile(r"(\w+)\s*=\s*(\S+)\s*")
_KNOWN = {
    "switchname": ("nodes", "switches", "linkspeed"),
    "blockname": ("nodes",),
    "blocksizes": (),
}
_WRITTEN = {"switchname": "SwitchName", "blockname": "BlockName", "blocksizes": "BlockSizes"}


def looks_like(text: str) -> bool:
    """Return whether a text is a topology.conf, by its first line."""
    return _FIRST.match(text) is not None


def looks_like_yaml(text: str) -> bool:
    """Return whether a text is a topology.yaml, by its first line; it is read in slurm_yaml.py."""
    return _FIRST_OF_YAML.match(text) is not None


def read(text: str, where: str) -> Cluster:
    """Return the cluster of a topology.conf. Raises InputError, naming file and line, for what is
    wrong in it.
    """
    cluster = Cluster(WHAT, where)
    children: list[tuple[str, list[str], str]] = []
    blocks: list[str] = []
    sizes: list[int] = []
    for place, kind, fields in _read_lines(text, where):
        if kind == "blocksizes":
            sizes = read_block_sizes(fields[kind].split(","), place)
            continue
        name = fields[kind]
        cluster.add_switch(name, place, once=True)
        if kind == "blockname":
            blocks.append(name)
        if "nodes" not in fields and "switches" not in fields:
            raise InputError(
                f"{place}: {_WRITTEN[kind]}={name} names nothing below it; expected Nodes= or "
                "Switches="
            )
        for host in expand_hostlist(fields["nodes"], place) if "nodes" in fields else ():
            cluster.add_host(host, name, place)
        if "switches" in fields:
            children.append((name, expand_hostlist(fields["switches"], place), place))
    put_children(cluster, children)
    if blocks and len(blocks) < len(cluster.above):
        raise InputError(
            f"{where}: SwitchName and BlockName in one file; it is of topology/tree or of "
            "topology/block"
        )
    if blocks:
        join_blocks(cluster, blocks, sizes, where)
    return cluster.finish()


def put_children(cluster: Cluster, children: list[tuple[str, list[str], str]]) -> None:
    """Put switches below those that name them; (switch, names below it, place). InputError where a
    name is no switch.
    """
    for parent, names, place in children:
        for name in names:
            if name not in cluster.above:
                raise InputError(
                    f"{place}: switch {parent} has {name!r:.60} below it, which no line "
                    "describes; add it"
                )
            cluster.put_below(name, parent, place)


def read_block_sizes(texts: list[str], place: str) -> list[int]:
    """Return the sizes of blocks, and of blocks of blocks, in hosts. Raises InputError where they
    are none.
    """
    sizes = [int(text) if re.fullmatch(r"\s*[1-9]\d{0,6}\s*", text) else 0 for text in texts]
    if not all(sizes) or any(b % a or a == b for a, b in pairwise(sizes)):
        raise InputError(
            f"{place}: block sizes are {','.join(texts)!r:.60}; expected numbers of hosts such as "
            "4,16"
        )
    return sizes


def join_blocks(cluster: Cluster, blocks: list[str], sizes: list[int], where: str) -> None:
    """Put a switch above blocks that belong together by their sizes (which follow each other), and
    one above all.
    """
    cluster.notes.append(
        "blocks are taken as hosts behind one network switch each; what joins their GPUs is not "
        "said"
    )
    level = blocks
    for number, size in enumerate(sizes[1:]):
        each = size // sizes[number]
        upper = []
        for first in range(0, len(level), each):
            name = f"blocks-of-{size}-{first // each}"
            cluster.add_switch(name, where, once=True)
            upper.append(name)
            for below in level[first : first + each]:
                cluster.put_below(below, name, where)
        level = upper
    join_tops(cluster, where)


def _read_lines(text: str, where: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield for each line its place, what it describes, and its fields in lower case."""
    begun, whole = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        begun = begun if whole else number
        if line.endswith("\\"):
            whole += line[:-1] + " "
            continue
        whole += line
        if whole:
            yield _read_fields(whole, f"{where}: line {begun}")
        whole = ""
    if whole:
        yield _read_fields(whole, f"{where}: line {begun}")


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
    if kind not in _KNOWN:
        raise InputError(
            f"{place}: {line!r:.60} begins with neither SwitchName= nor BlockName= nor BlockSizes="
        )
    for name in list(fields)[1:]:
        if name not in _KNOWN[kind]:
            raise InputError(
                f"{place}: {name}= is nothing that a {_WRITTEN[kind]} line has; correct or remove "
                "it"
            )
    return place, kind, fields
