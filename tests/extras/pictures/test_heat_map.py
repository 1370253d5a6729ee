"""The rates between pairs of GPUs as a picture, which says in SVG what its figures are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from svg_titles import read_titles

from topoplan.cli import probe
from topoplan.synth.extras.heat_map import MAX_GPUS, draw_heat_map
from topoplan.topo.presets import preset


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
    picture = draw_heat_map(measured)
    assert read_titles(picture, "rect") == ["gpu0 -> gpu1: 0.5 GB/s", "gpu1 -> gpu0: 0.25 GB/s"]
    assert "as measured" in picture


def test_more_gpus_than_a_picture_shows_are_drawn_in_part_and_it_is_said() -> None:
    picture = draw_heat_map(preset("switch:200"))
    assert len(read_titles(picture, "rect")) == MAX_GPUS * (MAX_GPUS - 1)
    assert "the first 128 of 200 GPUs" in picture
