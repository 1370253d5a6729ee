"""What undoes pasting: an extra, if there is one here; else texts are read as they are."""

from collections.abc import Callable
from dataclasses import dataclass

from ...extras import REPAIRS, Names


@dataclass(frozen=True)
class PastedXml:
    """An element with all in it, after as many empty lines as there are lines before it.

    `is_whole` is False if it has no end.
    """

    text: str
    is_whole: bool


@dataclass(frozen=True)
class Repairs:
    """What undoes pasting.

    `clean(text)` returns a text without the traces of terminals, web pages and logs; lines stay
    lines. `find_xml(text, *roots)` returns the first whole element of a text that is called as one
    of the roots, else the first one without an end, None without any.
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
