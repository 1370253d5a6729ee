"""Pictures of fronts: each says in SVG what its figures are. The colours of all pictures."""

from __future__ import annotations

import re
from pathlib import Path

from svg_titles import read_titles

from topoplan.cli import synth
from topoplan.synth.pictures.drawing import STYLE


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


def _find_lightness(colour: str) -> float:
    """Return CIE's L* of a colour, from 0 (black) to 100 (white)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    shares = (0.2126, 0.7152, 0.0722)
    luminance: float = sum(share * x for share, x in zip(shares, linear, strict=True))
    return float(116 * luminance ** (1 / 3) - 16)


def test_a_plan_and_stock_can_be_distinguished_without_colours() -> None:
    """On light pages and on dark ones."""
    for scheme in STYLE.split("@media"):
        plan, stock, paper = (
            _find_lightness(re.findall(rf"--{name}:(#\w+)", scheme)[0])
            for name in ("plan", "stock", "paper")
        )
        assert abs(plan - stock) >= 18
        assert min(abs(plan - paper), abs(stock - paper)) >= 40
