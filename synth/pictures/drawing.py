"""Elements of SVG, with the colours of light and dark pages, for pictures of schedules.

Charts are written by hand too. With altair they need as much code, a converter to SVG (104 MB in
all, where the whole installation is to have 350), and a second for the first one; and files have
no tooltips then.
"""

import math

from ...topo.printable import quote

# What a file of SVG names, and SVG inside HTML need not.
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
# Level lines of a picture.
_LEVELS = 5

# The classes of all pictures; a page, or a picture in a separate file, contains them once. A plan's
# colour and stock's differ in lightness too, so that they can be distinguished without colours.
STYLE = """\
.tp{--ink:#1f2933;--faint:#667380;--grid:#e3e8ee;--paper:#ffffff;--plan:#2f6300;--stock:#e2620f;
--bound:#4475b5;
--node:#eef7dd;--rim:#6aa61c;--copy:#4475b5;--add:#c2410c;--wire:#cfd6de;
font-family:"Helvetica Neue",Helvetica,Arial,"DejaVu Sans",sans-serif}
@media (prefers-color-scheme:dark){.tp{--ink:#e4e9ee;--faint:#9aa7b4;--grid:#2c353f;--paper:#161b21;
--plan:#a8e063;
--stock:#e8703f;--bound:#7fb0f0;--node:#26331a;--rim:#7fbf2f;--copy:#7fb0f0;--add:#ff9d66;
--wire:#3b4652}}
.tp .t{fill:var(--ink)}.tp .f{fill:var(--faint)}.tp .g{stroke:var(--grid);fill:none}.tp .w{
stroke:var(--wire);fill:none}
.tp .plan{stroke:var(--plan);fill:none}.tp .stock{stroke:var(--stock);fill:none}.tp .bound{
stroke:var(--bound);fill:none}
.tp .node{fill:var(--node);stroke:var(--rim)}.tp .copy{fill:var(--copy)}.tp .add{fill:var(--add)}
.tp .fp{fill:var(--plan)}.tp .fs{fill:var(--stock)}.tp .on{fill:var(--paper)}
.tp .ce{stroke:var(--copy);fill:none}.tp .ae{stroke:var(--add);fill:none}.tp .dim{opacity:.62}
"""


def start_svg(width: float, height: float, title: str, *, alone: bool = False) -> list[str]:
    """Return the first lines of an SVG picture, in pixels, which the caller must end with </svg>.

    With `alone` it is a complete file with style, else a part of a page that has the style.
    """
    name = f" {NAMESPACE}" if alone else ""
    lines = [
        f'<svg{name} class="tp" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{quote(title)}</title>",
    ]
    if alone:
        lines += draw_background()
    return lines


def draw_background() -> list[str]:
    """Return the style and the background that a picture in a file of its own needs."""
    return [
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" style="fill:var(--paper)"/>',
    ]


def draw_text(
    x: float, y: float, text: str, size: int, *, anchor: str = "start", look: str = "t"
) -> str:
    """Return a text element at a point in pixels; `look` is a class of STYLE."""
    return (
        f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" font-size="{size}" '
        f'text-anchor="{anchor}">{quote(text)}</text>'
    )


def draw_gridline(left: float, right: float, y: float, label: str) -> tuple[str, str]:
    """Return a horizontal grid line of a diagram, in pixels, and its label to the left of it."""
    return (
        f'<path class="g" d="M{left} {y:.1f}H{right}"/>',
        draw_text(left - 6, y + 4, label, 12, anchor="end", look="f"),
    )


def draw_bound(left: float, right: float, y: float) -> str:
    """Return the dashed horizontal line of a bound as an element of SVG, in pixels."""
    return (
        '<path class="bound" stroke-width="1.8" stroke-dasharray="7 4" '
        f'd="M{left} {y:.1f}H{right}"/>'
    )


def choose_step(highest: float) -> float:
    """Return a round distance between level lines, for about five of them from 0 to `highest`."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest / _LEVELS))
    return next(power * k for k in (1, 2, 5, 10) if power * k * _LEVELS >= highest)


def show_us(us: float) -> str:
    """Format a time in us: 12.3 us, 4.5 ms, 1.2 s."""
    for limit, factor, unit in ((999.5, 1.0, "us"), (999.5e3, 1e3, "ms")):  # 999.6 is 1e+03
        if us < limit:
            return f"{us / factor:.3g} {unit}"
    return f"{us / 1e6:.3g} s"
