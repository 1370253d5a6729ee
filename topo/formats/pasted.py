"""What undoes pasting: an extra, if there is one here; else texts are read as they are.

An extra is an optional part of topoplan: it adds Repairs to the group `repairs` (extras.py at the
root).
"""

from collections.abc import Callable
from dataclasses import dataclass

from ...extras import REPAIRS, Names


@dataclass(frozen=True)
class PastedXml:
    """An XML element that was found in a text.

    `text` is the element with its contents, after as many empty lines as the element has lines
    before it, so that line numbers in errors are those of the whole text. `is_whole` is False if
    the element has no end tag.
    """

    text: str
    is_whole: bool


@dataclass(frozen=True)
class Repairs:
    """What undoes the damage that copying and pasting does to a text.

    `clean(text)` returns a text without the traces of terminals, web pages and logs; lines stay
    lines. `find_xml(text, *roots)` returns the first whole element of a text whose tag is one of
    `roots`, else the first such element without an end tag, else None.
    """

    clean: Callable[[str], str]
    find_xml: Callable[..., PastedXml | None]


_NO_REPAIRS = Repairs(lambda text: text, lambda _, *roots: None)


def clean(text: str) -> str:
    """Return a text without what pasting leaves in it; see `Repairs`."""
    repairs: Repairs = Names(REPAIRS).find_only(_NO_REPAIRS)
    return repairs.clean(text)


def find_xml(text: str, *roots: str) -> PastedXml | None:
    """Return an element of a text with other text around it; see `Repairs`."""
    repairs: Repairs = Names(REPAIRS).find_only(_NO_REPAIRS)
    return repairs.find_xml(text, *roots)
