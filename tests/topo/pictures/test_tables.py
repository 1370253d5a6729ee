"""Tables: every device and kind of link is there, and no id breaks them."""

from __future__ import annotations

import io
from collections.abc import Callable
from fractions import Fraction

import pytest
from pictured import two_hosts
from rich.console import Console

from topoplan.synth.describe import print_plan
from topoplan.synth.plan import Plan
from topoplan.topo.matrix import find_connections
from topoplan.topo.pictures import table
from topoplan.topo.pictures.cables import format_rate
from topoplan.topo.presets import preset


def test_the_table_calls_the_lanes_of_pcie_as_people_do() -> None:
    rows = [line.split() for line in table.write(two_hosts()).splitlines()]
    assert ["PCIe", "6", "24", "x16", "Gen4", "x16"] in rows
    assert ["NVLink", "4", "24", "1", "Gen4", "x16"] in rows


def test_labels_of_ways_between_gpus() -> None:
    def label(name: str, src: int, dst: int) -> tuple[str, Fraction | None]:
        found = find_connections(preset(name))[src][dst]
        return found.label, found.GBps

    assert label("dgx1", 0, 1) == ("NV2", Fraction(50))
    assert label("dgx1", 0, 2) == ("NV1", Fraction(25))
    assert label("dgx1", 0, 7) == ("DIS", None)
    assert label("dgx2", 0, 15) == ("NV6", Fraction(150))
    assert label("dgx-a100:2", 0, 7) == ("NV12", Fraction(300))
    assert label("dgx-a100:2", 0, 8) == ("NET", Fraction(25))
    assert label("pcie-2socket", 0, 1) == ("PIX", Fraction(24))
    assert label("pcie-2socket", 0, 2) == ("PHB", Fraction(24))
    assert label("pcie-2socket", 0, 4) == ("SYS", Fraction(96, 5))
    assert label("mi300x", 3, 4) == ("XGMI1", Fraction(64))
    assert label("ring:4", 0, 1) == ("LNK", Fraction(1))
    assert label("switch:4", 0, 1) == ("SW", Fraction(1))


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (Fraction(50), "50"),
        (Fraction(96, 5), "19.2"),
        (Fraction(1, 8), "0.125"),
        (Fraction(1, 3), "0.333"),
        (Fraction(1000), "1000"),
    ],
)
def test_rates_are_written_as_people_write_them(rate: Fraction, text: str) -> None:
    assert format_rate(rate) == text


def test_the_table_of_a_plan_fits_80_columns_and_keeps_bound_and_gap(
    plans: Callable[..., str],
) -> None:
    plan = Plan.load(plans("ring:4", "allreduce", "ring"))
    for width, gone in ((80, "trees"), (50, "at size"), (200, None)):
        buffer = io.StringIO()
        print_plan(Console(file=buffer, width=width), plan, 1 << 26)
        heading = buffer.getvalue().splitlines()[1]
        assert len(heading) <= width and "\u2026" not in buffer.getvalue()
        assert "GB/s at most" in heading and heading.split()[-1] in ("gap", "size")
        assert (gone is None) == all(
            title in heading for title in ("trees", "segments", "rounds", "at size")
        )
        assert gone is None or gone not in heading
