"""Compute a hash of a labelled graph that does not depend on names or on the order in which its
parts are listed.

Colour refinement (Weisfeiler-Leman): each node's colour is hashed with the sorted labels and
colours around it until no more nodes are told apart. Where nodes are left alike, and there are not
too many, each is singled out in turn and refined again, which tells apart regular graphs that
refinement alone cannot.
"""

from __future__ import annotations

import hashlib

_INDIVIDUALISE_UP_TO = 64
# Limit on the colours that one refinement looks at: long chains of thousands of devices would need
# a round a device. The limit does not depend on names either; machines that differ only beyond it
# would get one fingerprint.
_MOST_WORK = 6_000_000

_LONGEST_LABEL = 80


def _digest(*parts: object) -> str:
    """Return 32 hex digits for any parts, by their texts."""
    return _digest_texts(list(map(str, parts)))


def _digest_texts(texts: list[str]) -> str:
    return hashlib.sha256("\x1f".join(texts).encode()).hexdigest()[:32]


def _refine(colours: list[str], edges: list[list[tuple[int, str]]]) -> list[str]:
    """Return the coarsest stable colouring, or what is reached within the limit; `edges[v]` lists
    (other end, label).
    """
    classes = len(set(colours))
    rounds = max(3, _MOST_WORK // (len(colours) + sum(map(len, edges)) + 1))
    around = [[(u, label + ">") for u, label in listed] for listed in edges]
    for _ in range(rounds):
        colours = [
            _digest_texts([colour, *sorted([label + colours[u] for u, label in near])])
            for colour, near in zip(colours, around, strict=True)
        ]
        refined_classes = len(set(colours))
        if refined_classes == classes:
            break
        classes = refined_classes
    return colours


def fingerprint(nodes: list[tuple[object, ...]], edges: dict[tuple[int, int], str]) -> str:
    """Return 32 hex digits for nodes with labels and directed edges (from, to) with labels."""
    neighbours: list[list[tuple[int, str]]] = [[] for _ in nodes]
    for (a, b), edge_label in edges.items():
        label = edge_label if len(edge_label) <= _LONGEST_LABEL else _digest(edge_label)
        neighbours[a].append((b, "out," + label))
        neighbours[b].append((a, "in," + label))
    colours = _refine([_digest(*node) for node in nodes], neighbours)
    digests = sorted(colours)
    if len(set(colours)) < len(colours) <= _INDIVIDUALISE_UP_TO:
        for v in range(len(colours)):
            # one node gets a colour that no other has: refined again, alike nodes may come apart
            individualised = list(colours)
            individualised[v] = _digest(individualised[v], "singled out")
            digests.append(_digest(*sorted(_refine(individualised, neighbours))))
    return _digest("topology", len(colours), *sorted(digests))
