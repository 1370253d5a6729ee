"""Lay out the network's switches in tiers: leaves next to the boxes, spines beyond them.

A box is a group of devices that are connected without the network, such as a server. Switches with
the same neighbours are a group, which is drawn as one bar. A tier has the groups at one distance
from the boxes. A cable stands for the links of one kind between two devices.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from ...pictures.cables import Cable
from .shapes import BAR_HEIGHT, Picture, Shape, bundle_wires, make_bars

# Pixels: between boxes or tiers of switches, from a row of boxes to its leaves, between bars of a
# tier, and the least width of a bar.
_TIER_GAP, _BOX_GAP, _BAR_GAP, _MIN_BAR = 56, 44, 20, 150.0

# The ids of the switches of one group.
Group = tuple[str, ...]


def find_tiers(groups: Sequence[Group], cables: Iterable[Cable]) -> list[list[Group]]:
    """Return the tiers of groups of switches, from the leaves, which have cables to boxes, upwards.

    `cables` are all that have a switch at an end. If a group has no way to the boxes, or a cable to
    its own tier, the groups form no tiers, and are returned as a single one.
    """
    of_switch = {ident: group for group in groups for ident in group}
    neighbours: dict[Group, set[Group]] = {group: set() for group in groups}
    leaves = set()
    for cable in cables:
        a, b = of_switch.get(cable.a), of_switch.get(cable.b)
        if a is not None and b is not None:
            neighbours[a].add(b)
            neighbours[b].add(a)
        else:
            leaves |= {group for group in (a, b) if group is not None}
    tiers = [[group for group in groups if group in leaves]]
    placed = set(leaves)
    while any(neighbours[group] - placed for group in tiers[-1]):
        reached = set().union(*(neighbours[group] for group in tiers[-1])) - placed
        tiers.append([group for group in groups if group in reached])
        placed |= reached
    number = {group: i for i, tier in enumerate(tiers) for group in tier}
    is_tiered = len(placed) == len(groups) and all(
        abs(number[group] - number[other]) == 1 for group in groups for other in neighbours[group]
    )
    return tiers if is_tiered else [list(groups)]


class TieredNetwork:
    """The layout of boxes and tiers of switches; `build_picture` returns it.

    `facing_up` are the pictures of the boxes with their network side up, `facing_down` with it
    down. `tiers` are from `find_tiers`. `names` has the title of each group of switches, `cables`
    all cables with a switch at an end. `gap` is the room between boxes in pixels.
    """

    def __init__(
        self,
        facing_up: Sequence[Picture],
        facing_down: Sequence[Picture],
        tiers: Sequence[Sequence[Group]],
        names: Mapping[Group, str],
        cables: Sequence[Cable],
        gap: float,
    ) -> None:
        self.facing_up, self.facing_down = facing_up, facing_down
        self.tiers, self.names, self.cables, self.gap = tiers, names, cables, gap
        of_switch = {ident: group for group in names for ident in group}
        box_of = {ident: i for i, p in enumerate(facing_up) for s in p.shapes for ident in s.ids}
        # The boxes that each group of switches reaches downwards.
        self.boxes_of: dict[Group, set[int]] = {group: set() for group in names}
        for cable in cables:
            for switch, other in ((cable.a, cable.b), (cable.b, cable.a)):
                if switch in of_switch and other in box_of:
                    self.boxes_of[of_switch[switch]].add(box_of[other])
        for lower, upper in pairwise(tiers):
            joined = {
                frozenset((of_switch[c.a], of_switch[c.b]))
                for c in cables
                if c.a in of_switch and c.b in of_switch
            }
            for group in upper:
                self.boxes_of[group] = set().union(
                    *(self.boxes_of[x] for x in lower if frozenset((x, group)) in joined)
                )

    def build_picture(self, most_in_row: int) -> Picture:
        """Return the layout; many boxes are divided between both sides of the highest tier.

        `most_in_row` is the largest number of boxes in a row.
        """
        order = sorted(
            range(len(self.facing_up)),
            key=lambda box: next(
                (i for i, x in enumerate(self.tiers[0]) if box in self.boxes_of[x]), 0
            ),
        )
        upper: list[int] = []
        if len(order) > most_in_row:
            upper = self._split(order)
        lower = [i for i in order if i not in upper]
        # From top to bottom: boxes, their tiers, the highest tier, other tiers, other boxes.
        rows: list[Sequence[Group]] = []
        for tier in self.tiers[:-1]:
            rows.append([group for group in tier if upper and self.boxes_of[group] <= {*upper}])
        rows.append(self.tiers[-1])
        for tier in reversed(self.tiers[:-1]):
            rows.append([group for group in tier if not self.boxes_of[group] <= {*upper}])
        return self._stack(upper, [row for row in rows if row], lower)

    def _split(self, order: Sequence[int]) -> list[int]:
        """Return the boxes above, about half; none if switches below the top reach both halves."""
        below_top = [self.boxes_of[group] for tier in self.tiers[:-1] for group in tier]
        counts = [
            count
            for count in range(1, len(order))
            if all(x <= {*order[:count]} or x.isdisjoint(order[:count]) for x in below_top)
        ]
        return list(order[: min(counts, key=lambda count: abs(2 * count - len(order)), default=0)])

    def _stack(
        self, upper: Sequence[int], rows: Sequence[Sequence[Group]], lower: Sequence[int]
    ) -> Picture:
        parts: list[Picture] = []
        widths = [
            sum(self.facing_up[i].width for i in row) + self.gap * (len(row) - 1)
            for row in (upper, lower)
        ]
        bars_width = max((_MIN_BAR + _BAR_GAP) * len(row) for row in rows)
        width, y = max(*widths, bars_width), 0.0
        if upper:
            y = max(self.facing_down[i].height for i in upper)
            x = (width - widths[0]) / 2
            for i in upper:
                picture = self.facing_down[i]
                parts.append(picture.shift(x, y - picture.height))
                x += picture.width + self.gap
            y += _BOX_GAP
        bars_y = [y + BAR_HEIGHT / 2 + i * (BAR_HEIGHT + _TIER_GAP) for i in range(len(rows))]
        x, y = (width - widths[1]) / 2, bars_y[-1] + BAR_HEIGHT / 2 + _BOX_GAP
        for i in lower:
            parts.append(self.facing_up[i].shift(x, y))
            x += self.facing_up[i].width + self.gap
        shapes = {ident: s for p in parts for s in p.shapes for ident in s.ids}
        boxes = {i: _find_edges(p) for i, p in zip([*upper, *lower], parts, strict=True)}
        for row, bar_y in zip(rows, bars_y, strict=True):
            shapes |= self._make_row(row, bar_y, width, boxes)
        return Picture(
            tuple(dict.fromkeys(shapes.values())),
            (*(w for p in parts for w in p.wires), *bundle_wires(shapes, self.cables)),
            tuple(f for p in parts for f in p.frames),
        )

    def _make_row(
        self, row: Sequence[Group], y: float, width: float, boxes: Mapping[int, tuple[float, float]]
    ) -> dict[str, Shape]:
        """Return a tier's bars, each as wide as its boxes where these are apart, else evenly."""
        spans = {
            group: (
                min(boxes[i][0] for i in self.boxes_of[group]),
                max(boxes[i][1] for i in self.boxes_of[group]),
            )
            for group in row
        }
        ordered = sorted(row, key=lambda group: sum(spans[group]))
        apart = all(spans[a][1] <= spans[b][0] for a, b in pairwise(ordered))
        if apart and all(right - left >= _MIN_BAR for left, right in spans.values()):
            bars: dict[str, Shape] = {}
            for group, (left, right) in spans.items():
                bars |= make_bars({group: self.names[group]}, "network", left, y, right - left, 0)
            return bars
        return make_bars(
            {group: self.names[group] for group in ordered}, "network", 0, y, width, _BAR_GAP
        )


def _find_edges(picture: Picture) -> tuple[float, float]:
    """Return the left and right edge of a box."""
    edges = [(s.left, s.right) for s in picture.shapes]
    edges += [(f.left, f.left + f.width) for f in picture.frames]
    return min(left for left, _ in edges), max(right for _, right in edges)
