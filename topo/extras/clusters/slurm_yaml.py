"""Read the default topology in Slurm's topology.yaml, a tree or blocks.

The result is a Cluster: hosts in the file's order, and the switches above them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import yaml

from ...errors import InputError
from .cluster import Cluster
from .slurm_conf import YAML, SwitchRow, add_switches, join_blocks, read_block_sizes

# Bounds the time of the parser in Python, 9 s for a file of 500 KB.
_MAX_CHARACTERS = 2**19
# A topology nests five levels.
_MAX_DEPTH = 16
_TOO_DEEP = "deeper than any topology"
# libyaml's parser if PyYAML was built with it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TYPES = ("tree", "block", "flat", "ring", "torus3d")


def read(text: str, where: str) -> Cluster:
    """Read the default topology of Slurm's topology.yaml.

    Raise InputError that names the file, `where`, and the line.
    """
    if len(text) > _MAX_CHARACTERS:
        raise InputError(
            f"{where}: larger than {_MAX_CHARACTERS >> 10} KiB; write hosts as lists such as "
            "node[001-512]"
        )
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH:
                what = "an alias; write it out" if depth <= _MAX_DEPTH else _TOO_DEEP
                raise InputError(f"{where}: line {event.start_mark.line + 1}: {what}")
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        # PyYAML 6.0.4 has a limit of its own, which it reaches while it reads ahead.
        what = _TOO_DEEP if "nesting depth" in problem else f"no YAML: {problem}"
        raise InputError(f"{where}:{line} {what}") from None
    except ValueError as error:
        raise InputError(f"{where}: no YAML: {error}") from None
    entries = (_Map(item, where) for item in _list(root, where, "topologies"))
    kind, chosen = _choose([entry for entry in entries if entry.fields], where)
    cluster = Cluster(YAML, where)
    add_hosts = _read_tree if kind == "tree" else _read_blocks
    add_hosts(cluster, chosen)
    return cluster.finish()


def _choose(entries: list[_Map], where: str) -> tuple[str, _Map]:
    """Return the type and description of the default topology.

    If there is only one topology, it is the default.
    """
    defaults = [
        entry
        for entry in entries
        if "cluster_default" in entry.fields
        and entry.read("cluster_default").lower() in ("true", "yes", "on")
    ]
    if not defaults and len(entries) != 1:
        names = ", ".join(e.read("topology") for e in entries[:4])
        raise InputError(
            f"{where}: none of {len(entries)} topologies ({names}) has cluster_default: true; "
            "give it to one"
        )
    entry = (defaults or entries)[0]
    kind = next((kind for kind in _TYPES if kind in entry.fields), "")
    if kind not in ("tree", "block"):
        raise InputError(
            f"{entry.place}: topology {entry.read('topology')} is {kind or 'of no type'}; "
            "expected a tree or blocks, which say where hosts are"
        )
    return kind, _Map(entry.fields[kind], where)


def _read_tree(cluster: Cluster, tree: _Map) -> None:
    switches: list[SwitchRow] = []
    for item in tree.list("switches"):
        name = item.read("switch")
        hosts, children = (
            item.read(key) if key in item.fields else None for key in ("nodes", "children")
        )
        if hosts is None and children is None:
            raise InputError(
                f"{item.place}: switch {name} names nothing below it; expected nodes: or children:"
            )
        switches.append((name, hosts, children, item.place))
    add_switches(cluster, switches)


def _read_blocks(cluster: Cluster, block: _Map) -> None:
    sizes = []
    if node := block.fields.get("block_sizes"):
        texts = [
            _text(item, cluster.where, "block_sizes")
            for item in _list(node, cluster.where, "block_sizes")
        ]
        sizes = read_block_sizes(texts, f"{cluster.where}: line {node.start_mark.line + 1}")
    blocks: list[SwitchRow] = [
        (item.read("block"), item.read("nodes"), None, item.place) for item in block.list("blocks")
    ]
    add_switches(cluster, blocks)
    join_blocks(cluster, [name for name, *_ in blocks], sizes)


class _Map:
    """A mapping with its place in the file; values are read as the text in the file."""

    def __init__(self, node: yaml.Node, where: str) -> None:
        self.where, self.place = where, f"{where}: line {node.start_mark.line + 1}"
        if not isinstance(node, yaml.MappingNode):
            raise InputError(f"{self.place}: expected names with values (name: value)")
        fields: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = _text(key, where, "a name")
            if name in fields:
                raise InputError(
                    f"{where}: line {key.start_mark.line + 1}: {name!r:.40} is there twice; give "
                    "each once"
                )
            fields[name] = value
        self.fields: Mapping[str, yaml.Node] = fields

    def find(self, name: str) -> yaml.Node:
        """Return a field. Raise InputError if it is missing."""
        if name not in self.fields:
            raise InputError(f"{self.place}: {name}: is missing; add it")
        return self.fields[name]

    def read(self, name: str) -> str:
        """Return a field's text."""
        return _text(self.find(name), self.where, name)

    def list(self, name: str) -> Iterator[_Map]:
        """Iterate over a field's items."""
        return (_Map(item, self.where) for item in _list(self.find(name), self.where, name))


def _text(node: yaml.Node, where: str, what: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise InputError(
            f"{where}: line {node.start_mark.line + 1}: {what}: expected one word or number"
        )
    return str(node.value)


def _list(node: yaml.Node | None, where: str, what: str) -> list[yaml.Node]:
    if not isinstance(node, yaml.SequenceNode):
        line = f" line {node.start_mark.line + 1}:" if node is not None else ""
        raise InputError(f"{where}:{line} {what}: expected a list (lines that begin with -)")
    return list(node.value)
