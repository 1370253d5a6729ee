"""Make pieces of HTML as text; text from outside is escaped by `quote`."""

import re
from collections.abc import Container, Iterable, Sequence
from itertools import count

from ....topo.printable import quote
from ...pictures.drawing import NAMESPACE, STYLE, draw_background

CSS = """\
:root{color-scheme:light dark;--page:#f4f6f8;--card:#ffffff;--text:#1f2933;--soft:#5b6875;
--line:#dfe4ea;--good:#3f7d00;
--bad:#c0262d;--warn:#b45309;--tint:#eef3f8;--shade:rgba(31,41,51,.32)}
@media (prefers-color-scheme:dark){:root{--page:#0e1216;--card:#161b21;--text:#e4e9ee;
--soft:#9aa7b4;--line:#2c353f;
--good:#8fd14f;--bad:#ff7b80;--warn:#f0b35e;--tint:#1d242c;--shade:rgba(228,233,238,.36)}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--text);
font:15px/1.5 "Helvetica Neue",Helvetica,Arial,"DejaVu Sans",sans-serif}
main{max-width:1400px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:26px;line-height:1.2;margin:8px 0 2px;overflow-wrap:anywhere}h2{font-size:19px;
margin:0 0 8px}
h3{font-size:15px;margin:18px 0 6px}
p{margin:6px 0;max-width:150ch;overflow-wrap:anywhere}
.soft,caption,figcaption{color:var(--soft)}.soft,figcaption{font-size:13.5px}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px;
margin:14px 0}
nav{display:flex;flex-wrap:wrap;gap:4px 14px;margin:10px 0;font-size:14px}a{color:inherit}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch;margin:8px 0;background:
linear-gradient(to right,var(--card) 60%,transparent) left/20px 100% no-repeat local,
linear-gradient(to left,var(--card) 60%,transparent) right/20px 100% no-repeat local,
linear-gradient(to right,var(--shade),transparent) left/12px 100% no-repeat scroll,
linear-gradient(to left,var(--shade),transparent) right/12px 100% no-repeat scroll}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:3px 10px 3px 0;text-align:left;white-space:nowrap;border-bottom:1px solid var(--line);
vertical-align:top}
th{color:var(--soft);font-weight:600;white-space:normal;vertical-align:bottom}
tr>:last-child{padding-right:0}.n{text-align:right}
figure{margin:10px 0}figure svg{display:block;height:auto}.fit svg{max-width:100%}.wide svg{
max-width:100%}
.curve svg,.map svg{max-width:100%}.curve svg{min-width:440px}.map svg{min-width:600px}
.grid{display:flex;flex-wrap:wrap;gap:8px}.beside>div{min-width:0}
@media (min-width:1100px){.beside{display:grid;gap:0 26px;align-items:start}
.even{grid-template-columns:minmax(0,1fr) minmax(0,1fr)}
.wider{grid-template-columns:minmax(0,1fr) 474px}.columns{columns:2;column-gap:32px}}
.beside>div>:first-child{margin-top:0}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:8px;margin:12px 0}
.facts div{background:var(--tint);border-radius:8px;padding:8px 10px}.facts b{display:block;
font-size:20px}
.facts span{font-size:13px;color:var(--soft)}.facts+p{margin:-4px 0 12px}
.finding{border-left:4px solid var(--line);padding:2px 0 2px 10px;margin:0 0 12px;
overflow-wrap:anywhere;break-inside:avoid}
.error{border-color:var(--bad)}.warning{border-color:var(--warn)}.finding b{
text-transform:uppercase;font-size:12px}
.finding.error b{color:var(--bad)}.finding.warning b{color:var(--warn)}.finding ul{margin:2px 0;
padding-left:18px}
details{margin:8px 0}summary{cursor:pointer;color:var(--soft)}.good{color:var(--good)}
@media (max-width:560px){main{padding:10px 8px 32px}section{padding:12px 10px}h1{font-size:22px}}
.machine svg>[fill="#ffffff"]{fill:none}
@media (prefers-color-scheme:dark){.machine [fill="#ffffff"]{fill:#161b21}.machine [fill="#fafbfc"]{
fill:#1a2027}
.machine [stroke="#fafbfc"]{stroke:#1a2027}.machine [fill="#1f2933"]{fill:#e4e9ee}
.machine [fill="#667380"]{fill:#9aa7b4}
.machine [stroke="#aab4bf"]{stroke:#45515d}.machine [fill="#eef7dd"]{fill:#26331a}
.machine [fill="#efe9f8"]{fill:#2b2338}
.machine [fill="#e6eefa"]{fill:#1d2a3d}.machine [fill="#e2f4f4"]{fill:#14302f}
.machine [fill="#dcefbb"]{fill:#2c3d17}
.machine [fill="#cfeceb"]{fill:#153534}}
"""

# A column is left out if at most one cell in so many has a text.
_SPARSE = 4
# The size of an SVG picture, as `start_svg` and the machine's picture write it.
_SIZE = re.compile(
    r'width="(?P<width>[\d.]+)" height="(?P<height>[\d.]+)" viewBox="(?P<box>[^"]*)"'
)


def make_page(title: str, body: Iterable[str]) -> str:
    """Return a complete HTML page titled `title`, which loads nothing; `body` is HTML."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{quote(title)}</title>",
            f"<style>\n{CSS}{STYLE}</style></head><body><main>",
            *body,
            "</main></body></html>\n",
        ]
    )


def make_section(ident: str, title: str, *parts: str) -> str:
    """Return an HTML section titled `title` that links reach as `#ident`; `parts` are HTML."""
    head = f'<section id="{ident}"><h2>{quote(title)}</h2>'
    return "\n".join([head, *filter(None, parts), "</section>"])


def make_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Container[int] = (),
    keep_sparse: bool = False,
) -> str:
    """Return a table of plain texts, with column `titles`, that scrolls sideways if too wide.

    Columns whose indices are in `right` hold numbers, aligned to the right. Columns of which at
    most a quarter of the cells have a text are left out, unless `keep_sparse`.
    """
    rows = list(rows)
    if not keep_sparse:
        shown = [i for i in range(len(titles)) if _is_filled([row[i] for row in rows])]
        titles, rows = [titles[i] for i in shown], [[row[i] for i in shown] for row in rows]
        right = {new for new, old in enumerate(shown) if old in right}

    def write_row(tag: str, texts: Iterable[str]) -> str:
        broken = (quote(text).replace("\n", "<br>") for text in texts)
        looks = (' class="n"' if i in right else "" for i in count())
        cells = (f"<{tag}{look}>{text}</{tag}>" for text, look in zip(broken, looks, strict=False))
        return f"<tr>{''.join(cells)}</tr>"

    lines = "\n".join([write_row("th", titles), *(write_row("td", row) for row in rows)])
    return f'<div class="scroll"><table>{lines}</table></div>'


def _is_filled(cells: Sequence[str]) -> bool:
    return not cells or sum(map(bool, cells)) * _SPARSE > len(cells)


def make_beside(left: Sequence[str], right: Sequence[str], look: str = "even") -> str:
    """Return two columns of HTML, one below the other where the page is narrow.

    With the `look` "wider" the right one has room for a curve alone.
    """
    columns = (f"<div>{chr(10).join(filter(None, parts))}</div>" for parts in (left, right))
    return f'<div class="beside {look}">{"".join(columns)}</div>'


def crop_picture(svg: str, top: float, side: float = 0) -> str:
    """Return an SVG picture without `top` pixels of its head, and `side` of its left and right.

    The page has said what stands there; the picture in a file of its own has it again.
    """
    found = _SIZE.search(svg)
    if found is None:
        return svg
    width, height = float(found["width"]) - 2 * side, float(found["height"]) - top
    size = f'width="{width:g}" height="{height:g}" viewBox="{side:g} {top:g} {width:g} {height:g}"'
    return f'{svg[: found.start()]}{size} data-whole="{found["box"]}"{svg[found.end() :]}'


def make_figure(svg: str, caption: str, look: str = "") -> str:
    """Return an SVG picture with its caption, as HTML.

    A wide one scrolls sideways, unless `look` is "fit" ("curve" and "wide" shrink to a limit).
    """
    return (
        f'<figure><div class="scroll {look}">{svg}</div><figcaption>{quote(caption)}</figcaption>'
        "</figure>"
    )


def list_pictures(page: str) -> list[tuple[str, str]]:
    """Return the pictures of a page in order, each (id of its section, complete SVG file)."""
    return [
        (section[1], _complete_svg(svg[0]))
        for section in re.finditer(r'<section id="([^"]+)">.*?</section>', page, re.DOTALL)
        for svg in re.finditer(r"<svg .*?</svg>", section[0], re.DOTALL)
    ]


def _complete_svg(svg: str) -> str:
    """Return a picture of a page as a file: with the namespace, and the style that the page has."""
    styled = 'class="tp"' in svg.partition(">")[0]
    style = "\n".join(draw_background()) if styled else ""
    whole = re.search(r' data-whole="0 0 (\S+) (\S+)"', svg)
    if whole is not None:
        size = f'width="{whole[1]}" height="{whole[2]}" viewBox="0 0 {whole[1]} {whole[2]}"'
        svg = _SIZE.sub(size, svg.replace(whole[0], "", 1), count=1)
    head, end, rest = svg.partition("</title>")
    return head.replace("<svg ", f"<svg {NAMESPACE} ", 1) + end + style + rest + "\n"


def make_paragraph(text: str, *, soft: bool = False) -> str:
    """Return a paragraph of plain text, in a softer colour if `soft`."""
    look = ' class="soft"' if soft else ""
    return f"<p{look}>{quote(text)}</p>"


def make_details(summary: str, *parts: str) -> str:
    """Return HTML whose `parts` stay folded until a reader clicks the plain text `summary`."""
    return f"<details><summary>{quote(summary)}</summary>" + "\n".join(parts) + "</details>"
