"""Pictures of fronts: each says in SVG what its figures are."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from topoplan.cli import synth

SVG = "{http://www.w3.org/2000/svg}"


def read_titles(picture: str, element: str) -> list[str]:
    """What is told where one points at elements of a kind."""
    root = ElementTree.fromstring(picture)
    return [
        title.text or ""
        for mark in root.iter(SVG + element)
        for title in mark.findall(SVG + "title")
    ]


def test_a_front_is_drawn_with_what_is_impossible_and_the_bound(tmp_path: Path) -> None:
    target = tmp_path / "front.svg"
    asked = [
        "--collective",
        "allgather",
        "--topology",
        "dgx1",
        "--pareto",
        "--plot",
        str(target),
        "--json",
    ]
    assert synth.main(asked) == 0
    picture = target.read_text("utf-8")
    dots = [
        title
        for title in read_titles(picture, "circle")
        if "fewest steps" in title or "at the bound" in title
    ]
    assert any(
        "2 chunks, 2 steps, 3 rounds: feasible, fewest steps" in title for title in dots
    )  # SCCL, table 4
    assert any(
        "6 chunks, 3 steps, 7 rounds: feasible" in title and "at the bound" in title
        for title in dots
    )
    assert all("infeasible" in title for title in read_titles(picture, "path"))
    assert "the bound: 7/6" in picture
    assert synth.main(asked) == 2, "it is there already"
