"""What pictures say: the titles of elements in SVG."""

from __future__ import annotations

from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def read_titles(picture: str, element: str) -> list[str]:
    """Return the titles of a picture's elements of a kind, which readers see when they point."""
    root = ElementTree.fromstring(picture)
    return [
        title.text or ""
        for mark in root.iter(SVG + element)
        for title in mark.findall(SVG + "title")
    ]
