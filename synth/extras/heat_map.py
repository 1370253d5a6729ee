"""The rates between all pairs of GPUs as an SVG picture: one square per pair, darker if faster."""

from collections.abc import Mapping
from itertools import permutations

from ...topo.graph import Topology
from ...topo.printable import quote
from ...topo.routes import Router, route_links
from ..pictures.drawing import draw_text, start_svg

# Most GPUs to draw, the first ones: more squares would be smaller than five pixels.
MAX_GPUS = 128
# Pixels: margins, the squares together and one alone, a square with text, a letter, the picture.
_TOP, _BOTTOM, _MARGIN = 74, 40, 10
_MAX_PIXELS, _MAX_CELL = 640, 52.0
_MIN_CELL_OF_TEXT, _LETTER, _MIN_WIDTH = 30.0, 7.0, 420
# Pixels of the title, which a page that says it cuts off.
TITLE_HEIGHT = 26
# Of squares without text every so many rows and columns have a number, which has so many letters.
_NUMBERED, _NUMBER_LETTERS = 8, 3

Pair = tuple[int, int]


def draw_heat_map(topology: Topology, *, alone: bool = True, merge: bool = False) -> str:
    """Return the SVG picture of rates: one row per sending GPU, one column per receiving GPU.

    If topo-probe measured the topology, the rates are those of each pair alone, else those of the
    narrowest link on the pair's route. A pair without a route stays white. Rates are written into
    squares that are large enough, and shown as tooltips. It is a complete file, without `alone` a
    part of a page. With `merge`, small squares of one rate in a row are one bar without tooltips.
    """
    measured = _find_measured_GBps(topology)
    ranks = topology.ranks[:MAX_GPUS]
    rates = measured or _find_declared_GBps(topology, len(ranks))
    cell = min(_MAX_CELL, _MAX_PIXELS / max(1, len(ranks)))
    is_named = cell >= _MIN_CELL_OF_TEXT
    letters = max(map(len, ranks), default=0) if is_named else _NUMBER_LETTERS
    left = 2 * _MARGIN + _LETTER * letters
    side = cell * len(ranks)
    width, height = max(_MIN_WIDTH, left + side + _MARGIN), _TOP + side + _BOTTOM
    low, high = min(rates.values(), default=0.0), max(rates.values(), default=0.0)

    title = f"{topology.name}: GB/s from GPU (row) to GPU (column)"
    declared = "the narrowest link on each pair's route, as declared"
    how = "each pair alone, as measured" if measured else declared
    if len(topology.ranks) > MAX_GPUS:
        how += f"; the first {MAX_GPUS} of {len(topology.ranks)} GPUs"
    lines = [
        *start_svg(width, height, title, alone=alone),
        draw_text(_MARGIN, 20, title, 14),
        draw_text(_MARGIN, 40, how, 12, look="f"),
    ]
    named = ranks if is_named else [str(number) for number in range(len(ranks))]
    for number in range(0, len(ranks), 1 if is_named else _NUMBERED):
        x, y, name = left + cell * (number + 0.5), _TOP + cell * (number + 0.5), named[number]
        room = cell if is_named else cell * _NUMBERED
        lines += [
            draw_text(x, _TOP - 6, _shorten(name, room), 11, anchor="middle", look="f"),
            draw_text(left - 8, y + 4, name, 11, anchor="end", look="f"),
        ]
    drawn = {pair: rate for pair, rate in sorted(rates.items()) if max(pair) < len(ranks)}
    runs = _merge_alike(drawn) if merge and not is_named else dict.fromkeys(drawn, 1)
    for (src, dst), length in runs.items():
        x, y, rate = left + cell * dst, _TOP + cell * src, drawn[src, dst]
        share = 1.0 if high == low else (rate - low) / (high - low)
        tooltip = quote(f"{ranks[src]} -> {ranks[dst]}: {rate:.4g} GB/s")
        lines.append(
            f'<rect class="fp" x="{x:.1f}" y="{y:.1f}" width="{cell * (length - 0.03):.1f}" '
            f'height="{0.97 * cell:.1f}" fill-opacity="{0.1 + 0.9 * share:.2f}"'
            + (f"><title>{tooltip}</title></rect>" if length == 1 else "/>")
        )
        if is_named:
            x, y, look = x + cell / 2, y + cell / 2 + 4, "on" if share > 0.5 else "t"
            lines.append(draw_text(x, y, f"{rate:.3g}", 11, anchor="middle", look=look))
    key = f"{low:.4g} (light) to {high:.4g} GB/s (dark)"
    return "\n".join([*lines, draw_text(_MARGIN, height - 14, key, 12, look="f"), "</svg>"]) + "\n"


def _find_measured_GBps(topology: Topology) -> dict[Pair, float]:
    measured = topology.extra.get("measured")
    pairs = measured.get("pairs") if isinstance(measured, Mapping) else None
    numbers = {name: number for number, name in enumerate(topology.ranks)}
    return {
        (numbers[pair["src"]], numbers[pair["dst"]]): float(pair["GBps"])
        for pair in (pairs if isinstance(pairs, list) else ())
        if isinstance(pair, Mapping)
        and pair.get("src") in numbers
        and pair.get("dst") in numbers
        and "GBps" in pair
    }


def _find_declared_GBps(topology: Topology, count: int) -> dict[Pair, float]:
    router, rates = Router(topology), {}
    for pair in permutations(range(count), 2):
        route = router.route(*pair)
        if route is not None:
            rates[pair] = float(min(topology.capacity_GBps[hop] for hop in route_links(route)))
    return rates


def _merge_alike(rates: Mapping[Pair, float]) -> dict[Pair, int]:
    """Return runs of equal rates in a row, each its first pair and its number of pairs."""
    runs: dict[Pair, int] = {}
    first = (-1, -1)
    for (src, dst), rate in rates.items():
        is_next = first[0] == src and first[1] + runs[first] == dst
        if is_next and rates[first] == rate:
            runs[first] += 1
        else:
            first = (src, dst)
            runs[first] = 1
    return runs


def _shorten(name: str, pixels: float) -> str:
    """Return the end of a name that fits above a column: names differ most at their ends."""
    letters = int(pixels / _LETTER)
    return name if len(name) <= letters else "\u2026" + name[len(name) - letters + 1 :]
