"""Pictures of fronts, of rates between pairs and of the lab's rows: each says in SVG what its
figures are. The colours of all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from topoplan.cli import probe, synth
from topoplan.synth.pictures.drawing import STYLE
from topoplan.synth.pictures.heat_map import MAX_GPUS, draw_heat_map
from topoplan.topo.presets import preset

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


def test_the_rates_of_all_pairs_are_squares(tmp_path: Path) -> None:
    target = tmp_path / "rates.svg"
    assert probe.main(["dgx1", "--format", "heat-map", "-o", str(target)]) == 0
    told = read_titles(target.read_text("utf-8"), "rect")
    # 4 neighbours each, of which 2 are joined by two links
    assert Counter(title.split(": ")[1] for title in told) == {"50 GB/s": 16, "25 GB/s": 16}
    assert "gpu0 -> gpu4: 50 GB/s" in told


def test_measured_rates_come_before_declared_ones() -> None:
    topology = preset("ring:3")
    pairs = [
        {"src": "gpu0", "dst": "gpu1", "GBps": 0.5},
        {"src": "gpu1", "dst": "gpu0", "GBps": 0.25},
    ]
    measured = replace(topology, extra={"measured": {"over": "gloo", "pairs": pairs}})
    picture = draw_heat_map(measured, alone=True)
    assert read_titles(picture, "rect") == ["gpu0 -> gpu1: 0.5 GB/s", "gpu1 -> gpu0: 0.25 GB/s"]
    assert "as measured" in picture


def test_more_gpus_than_a_picture_shows_are_drawn_in_part_and_it_is_said() -> None:
    picture = draw_heat_map(preset("switch:200"), alone=True)
    assert len(read_titles(picture, "rect")) == MAX_GPUS * (MAX_GPUS - 1)
    assert "the first 128 of 200 GPUs" in picture


def _find_lightness(colour: str) -> float:
    """Return CIE's L* of a colour, from 0 (black) to 100 (white)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    shares = (0.2126, 0.7152, 0.0722)
    luminance: float = sum(share * x for share, x in zip(shares, linear, strict=True))
    return float(116 * luminance ** (1 / 3) - 16)


def test_a_plan_and_stock_are_told_apart_without_colours() -> None:
    """On light pages and on dark ones."""
    for scheme in STYLE.split("@media"):
        plan, stock, paper = (
            _find_lightness(re.findall(rf"--{name}:(#\w+)", scheme)[0])
            for name in ("plan", "stock", "paper")
        )
        assert abs(plan - stock) >= 18
        assert min(abs(plan - paper), abs(stock - paper)) >= 40
