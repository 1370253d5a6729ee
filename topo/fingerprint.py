"""Hash a labelled graph independently of names and of the order of its parts.

Colour refinement (Weisfeiler-Leman): each node's colour is hashed with the sorted labels and
colours around it until the number of colours is stable. If few enough nodes still share a colour,
each is individualized in turn and refined again, which distinguishes regular graphs that refinement
alone cannot.
"""

from __future__ import annotations

import hashlib

# Nodes: individualizing costs a refinement per node.
_MAX_INDIVIDUALIZED = 64
# Colours visited by one refinement: a chain of thousands of devices would need a round per device.
# The limit is independent of names too; machines that differ only beyond it share a fingerprint.
_MAX_WORK = 6_000_000
# Characters; longer edge labels are hashed first, since each is used once per round.
_MAX_LABEL = 80


def _digest(texts: list[str]) -> str:
    return hashlib.sha256("\x1f".join(texts).encode()).hexdigest()[:32]


def _refine(colours: list[str], edges: list[list[tuple[int, str]]]) -> list[str]:
    """Return the coarsest stable colouring, or the last one within the limit.

    `edges[v]` lists (other end, label).
    """
    classes = len(set(colours))
    rounds = max(3, _MAX_WORK // (len(colours) + sum(map(len, edges)) + 1))
    around = [[(u, label + ">") for u, label in listed] for listed in edges]
    for _ in range(rounds):
        colours = [
            _digest([colour, *sorted([label + colours[u] for u, label in near])])
            for colour, near in zip(colours, around, strict=True)
        ]
        refined_classes = len(set(colours))
        if refined_classes == classes:
            break
        classes = refined_classes
    return colours


def fingerprint(nodes: list[list[str]], edges: dict[tuple[int, int], str]) -> str:
    """Hash nodes with labels and directed edges (from, to) with labels to 32 hex digits."""
    neighbours: list[list[tuple[int, str]]] = [[] for _ in nodes]
    for (a, b), edge_label in edges.items():
        label = edge_label if len(edge_label) <= _MAX_LABEL else _digest([edge_label])
        neighbours[a].append((b, "out," + label))
        neighbours[b].append((a, "in," + label))
    colours = _refine([_digest(node) for node in nodes], neighbours)
    digests = sorted(colours)
    if len(set(colours)) < len(colours) <= _MAX_INDIVIDUALIZED:
        for v in range(len(colours)):
            # Give one node a colour of its own: refined again, equal nodes may become different.
            individualised = list(colours)
            individualised[v] = _digest([colours[v], "singled out"])
            digests.append(_digest(sorted(_refine(individualised, neighbours))))
    return _digest(["topology", str(len(colours)), *sorted(digests)])
