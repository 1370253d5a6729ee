"""A hash of a labelled graph that does not depend on names or on the order in which its parts are listed.

Colour refinement (Weisfeiler-Leman): each node's colour is hashed with the sorted labels and colours around it until
no more nodes are told apart. Where nodes are left alike, and there are not too many, each is singled out in turn and
refined again, which tells apart regular graphs that refinement alone cannot.
"""

from __future__ import annotations

import hashlib

_INDIVIDUALISE_UP_TO = 64
_MOST_WORK = 6_000_000
"""Colours that one refinement looks at, at most: long chains of thousands of devices would need a round a device. What it
stops at does not depend on names either; machines that differ further on only would get one fingerprint."""

_LONGEST_LABEL = 80


def _digest(*parts: object) -> str:
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:32]


def _refine(colours: list[str], edges: list[list[tuple[int, str]]]) -> list[str]:
    """Colour refinement to the coarsest stable partition; `edges[v]` lists (other end, label)."""
    classes = len(set(colours))
    rounds = max(3, _MOST_WORK // (len(colours) + sum(map(len, edges)) + 1))
    for _ in range(rounds):
        colours = [
            _digest(colours[v], *sorted(f"{label}>{colours[u]}" for u, label in edges[v])) for v in range(len(colours))
        ]
        now = len(set(colours))
        if now == classes:
            break
        classes = now
    return colours


def fingerprint(nodes: list[tuple[object, ...]], edges: dict[tuple[int, int], str]) -> str:
    """32 hex digits for nodes with labels and directed edges (from, to) with labels."""
    around: list[list[tuple[int, str]]] = [[] for _ in nodes]
    for (a, b), told in edges.items():
        label = told if len(told) <= _LONGEST_LABEL else _digest(told)
        around[a].append((b, "out," + label))
        around[b].append((a, "in," + label))
    colours = _refine([_digest(*node) for node in nodes], around)
    views = sorted(colours)
    if len(set(colours)) < len(colours) <= _INDIVIDUALISE_UP_TO:
        for v in range(len(colours)):
            alone = list(colours)
            alone[v] = _digest(alone[v], "singled out")
            views.append(_digest(*sorted(_refine(alone, around))))
    return _digest("topology", len(colours), *sorted(views))
