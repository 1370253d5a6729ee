"""Parse untrusted XML safely: no DTD, no entities, bounded depth and size, known line numbers.

Nothing is ever fetched: if a format has a document type, its name is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from typing import Any
from xml.etree.ElementTree import ParseError

from defusedxml.common import DefusedXmlException, DTDForbidden
from defusedxml.ElementTree import DefusedXMLParser

from ..errors import InputError

# Limits that keep a hostile file from exhausting memory or time; files of machines stay far below.
MAX_CHARACTERS = 16 * 2**20
MAX_DEPTH = 64
MAX_ELEMENTS = 200_000
MAX_TEXT_CHARACTERS = 2**20
# Attributes per element; hwloc writes some 30. The parser builds all before its first callback.
MAX_ATTRIBUTES = 256

_ATTRIBUTE = r"""\s+[^\s=<>"']+\s*=\s*(?:"[^"<]*"|'[^'<]*')"""
_MANY_ATTRIBUTES = re.compile(rf"<[^\s<>/!?]+(?:{_ATTRIBUTE}){{{MAX_ATTRIBUTES + 1}}}")
_CUT_OFF = ("no element found", "unclosed token", "partial character")


@dataclass(eq=False)
class Element:
    """An element: tag, attributes, children in order and stripped text.

    `where` and `line` are its file and line, empty and 0 for an element to be written.
    """

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    where: str = ""
    line: int = 0
    text: str = ""

    def __iter__(self) -> Iterator[Element]:
        """Iterate over the children, in order."""
        return iter(self.children)

    def select(self, *tags: str) -> list[Element]:
        """Return the children with one of `tags`, in order."""
        return [child for child in self.children if child.tag in tags]

    def walk(self) -> Iterator[Element]:
        """Yield this element and all below it, in the order of the text."""
        stack = [self]
        while stack:
            element = stack.pop()
            yield element
            stack.extend(reversed(element.children))

    def get(self, key: str) -> str | None:
        """Return an attribute, None if it is absent or empty."""
        return self.attributes.get(key) or None

    def get_integer(
        self, key: str, default: int | None = None, minimum: int = 0, maximum: int = 10**9
    ) -> int | None:
        """Return an attribute as an integer, `default` if it is absent or empty.

        Raise InputError for any other text, and for a number below `minimum` or above `maximum`.
        """
        text = self.get(key)
        if text is None:
            return default
        with suppress(ValueError):
            # int() of long texts is slow
            if len(text) <= 20 and minimum <= int(text) <= maximum:
                return int(text)
        raise self.make_error(
            f"{key}={text[:40]!r}: expected a whole number from {minimum} to {maximum}"
        )

    def make_error(self, what: str) -> InputError:
        """Return, not raise, an InputError: the file, line and tag, then `what` is wrong."""
        return InputError(f"{self.where}, line {self.line}: <{self.tag}> {what}")


class _Builder:
    """Builder of the tree below `root` from the parser's events; raises InputError at a limit."""

    root: Element
    parser: Any  # expat's, which knows the line

    def __init__(self, where: str) -> None:
        self.where = where
        self._open: list[Element] = []
        self._texts: list[StringIO] = []
        self._count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        element = Element(
            tag, attributes, where=self.where, line=int(self.parser.CurrentLineNumber)
        )
        self._count += 1
        if len(self._open) >= MAX_DEPTH:
            raise element.make_error(f"is nested deeper than {MAX_DEPTH} elements; no topology is")
        if self._count > MAX_ELEMENTS:
            raise element.make_error(
                f"is one of more than {MAX_ELEMENTS} elements; so large a file is refused"
            )
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)
        self._texts.append(StringIO(newline=""))

    def end(self, tag: str) -> None:
        self._open.pop().text = self._texts.pop().getvalue().strip()

    def data(self, text: str) -> None:
        self._texts[-1].write(text)
        if self._texts[-1].tell() > MAX_TEXT_CHARACTERS:
            raise self._open[-1].make_error(
                f"has a text of more than {MAX_TEXT_CHARACTERS} characters; so long a text is "
                "refused"
            )


def _refuse_subset(
    name: str, sysid: str | None, pubid: str | None, has_internal_subset: int
) -> None:
    """Refuse declarations inside a document type; its address alone is allowed, and not fetched."""
    if has_internal_subset:
        raise DTDForbidden(name, sysid, pubid)


def parse_xml(text: str, where: str, doctype: bool = False) -> Element:
    """Parse `text` and return its root element; `where` names the file in errors.

    With `doctype` the text may name a document type (`<!DOCTYPE topology SYSTEM "hwloc2.dtd">`),
    which is not fetched. Raise InputError for text that is cut off or malformed (with line and
    column), for declarations of entities or document types, and if a limit is exceeded.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{where}: {len(text)} characters; more than {MAX_CHARACTERS} are refused")
    if many := _MANY_ATTRIBUTES.search(text):
        line = text.count("\n", 0, many.start()) + 1
        raise InputError(
            f"{where}, line {line}: an element with more than {MAX_ATTRIBUTES} attributes; no "
            "topology has such"
        )
    builder = _Builder(where)
    try:
        parser = DefusedXMLParser(target=builder, forbid_dtd=not doctype)
        builder.parser = parser.parser
        if doctype:
            builder.parser.StartDoctypeDeclHandler = _refuse_subset
        parser.feed(text)
        parser.close()
    except ParseError as error:
        line, column = error.position
        what = str(error).split(":")[0]
        ending = "is the file cut off?" if what in _CUT_OFF else "correct it there"
        raise InputError(
            f"{where}: incomplete or malformed XML: {what} at line {line}, "
            f"column {column + 1}; {ending}"
        ) from None
    except DefusedXmlException as error:
        raise InputError(
            f"{where}: declares a DTD or entities "
            f"({type(error).__name__.removesuffix('Forbidden')}), which is refused; remove the "
            "declaration"
        ) from None
    except (ValueError, LookupError) as error:
        raise InputError(f"{where}: not usable XML: {error}") from None
    return builder.root
