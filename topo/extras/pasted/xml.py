"""Find XML amid other text: in a fence, after a shell's prompt, quoted, or in prose.

Lines keep their numbers, so that errors name those of the text as given.
"""

import html
import re

from ...formats.pasted import PastedXml
from .traces import remove_codes

# Largest text that is searched; the files themselves are smaller.
_MAX_CHARACTERS = 16 * 2**20
# Starts that are tried: prose may name an element before the file comes.
_MAX_STARTS = 16
# What may stand in front of every line: quotes, numbers of lines, the place of a log.
_PREFIX = r"^(?P<before>(?:[^<\n]|</?(?:pre|code|p|div|summary|details|br)\b[^<>\n]*>){0,120}?)"
# A name in a sentence has neither attributes nor elements after it.
_AFTER_ROOT = r"(?:\s+[\w:]+\s*=|\s*>[ \t]*(?:$|<))"
_FENCE = re.compile(r"^[ \t>]{0,40}(?:`{3,}|~{3,})[^\n]*$|</(?:pre|code)>", re.MULTILINE)
# Quotation marks as text processors set them.
_QUOTES = {0x201C: '"', 0x201D: '"', 0xA0: " "}


def find_xml(text: str, *roots: str) -> PastedXml | None:
    """Return the first whole element of `text` called as one of `roots`, else the first cut one.

    Its text begins with as many empty lines as precede it in `text`. Return None if there is none.
    """
    text = text[:_MAX_CHARACTERS]
    if not _names_any(text, roots):
        if "&lt;" not in text:
            return None
        text = html.unescape(text)
        if not _names_any(text, roots):
            return None
    start = re.compile(rf"{_PREFIX}<(?P<root>{'|'.join(roots)}){_AFTER_ROOT}", re.MULTILINE)
    cut = None
    for number, match in enumerate(start.finditer(text)):
        if number == _MAX_STARTS:
            break
        begin = match.start("root") - 1
        end = text.find(f"</{match['root']}>", begin)
        if end >= 0:
            return PastedXml(_cut_out(text, match, end + len(match["root"]) + 3), True)
        if cut is None:
            fence = _FENCE.search(text, begin)
            cut = PastedXml(_cut_out(text, match, fence.start() if fence else len(text)), False)
    return cut


def _names_any(text: str, roots: tuple[str, ...]) -> bool:
    return any(f"<{root}" in text for root in roots)


def _cut_out(text: str, start: re.Match[str], end: int) -> str:
    """Return the part from a start to an end without what stands in front of its lines."""
    begin = start.start("root") - 1
    lines = text[begin:end].split("\n")
    words = start["before"].split()
    if words:
        shape = [re.sub(r"\d+", r"\\d+", re.escape(word)) for word in words]
        prefix = re.compile(r"[ \t]*" + r"[ \t]*".join(shape))
        found = [prefix.match(line) for line in lines[1:]]
        if all(match or not line.strip() for match, line in zip(found, lines[1:], strict=True)):
            rest = zip(found, lines[1:], strict=True)
            lines[1:] = [line[match.end() :] if match else "" for match, line in rest]
    inside = remove_codes("\n".join(lines))
    if "=&quot;" in inside:
        inside = html.unescape(inside)
    if "=\u201c" in inside or "=\u201d" in inside or "\xa0" in inside:
        inside = inside.translate(_QUOTES)
    return "\n" * text.count("\n", 0, begin) + inside
