"""What notebooks show: pictures that are whole, tables with the figures, and no early imports."""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from xml.etree import ElementTree

from launch import run_command

import topoplan
from topoplan import Device, Plan, Topology

SVG = "{http://www.w3.org/2000/svg}"


@cache
def plan_dgx1() -> Plan:
    return topoplan.synthesize("allreduce", "dgx1", "packing")


class _Page(HTMLParser):
    """The texts of a fragment; `open` are the elements that it does not close."""

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.pictures = 0
        self.feed(fragment)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.pictures += tag == "svg"
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """Take an element that is closed at once."""

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def read_fragment(shown: object) -> _Page:
    """Return what Jupyter would show of an object, and check that its pictures are whole."""
    picture = shown._repr_svg_()  # type: ignore[attr-defined]
    if picture is not None:
        assert ElementTree.fromstring(picture).tag == f"{SVG}svg"
    page = _Page(shown._repr_html_())  # type: ignore[attr-defined]
    assert page.open == [] and "http" not in " ".join(page.texts)
    return page


def test_a_machine_is_a_picture_with_its_tables_below() -> None:
    page = read_fragment(topoplan.load("dgx1"))
    assert page.pictures == 1 and {*"01234567"} <= set(page.texts)
    assert any("NVLink" in text for text in page.texts)


def test_of_a_large_machine_a_part_is_shown_and_the_rest_is_counted() -> None:
    page = read_fragment(topoplan.load("dgx-a100:16"))
    assert any("there are 16 like that of" in text for text in page.texts)


def test_a_plan_has_its_bound_curves_entries_and_a_timeline() -> None:
    plan = plan_dgx1()
    page = read_fragment(plan)
    assert "allreduce over 8 ranks on dgx1" in page.texts
    assert any("at most 85.71 (exactly 600/7) GB/s algbw" in text for text in page.texts)
    listed = [entry for entry in plan.entries if entry.min_bytes <= 1 << 34]
    assert {entry.schedule.label for entry in listed} <= set(page.texts)
    assert page.pictures > 3


def test_a_schedule_shows_its_steps_to_scale() -> None:
    """A ring in both directions: 14 steps of 1/16 GB over links of 25 GB/s are 35 ms."""
    schedule = topoplan.synthesize("allreduce", "ring:8@25", "ring").entries[-1].schedule
    page = read_fragment(schedule)
    assert {f"rank {rank}" for rank in range(8)} <= set(page.texts)
    assert "35 ms" in page.texts
    picture = ElementTree.fromstring(str(schedule._repr_svg_()))
    bars = [x for x in picture.iter(f"{SVG}rect") if x.find(f"{SVG}title") is not None]
    assert len(bars) == len({(t.src, t.dst, t.op, t.step) for t in schedule.transfers})


def test_a_front_shows_its_rows_and_what_is_impossible() -> None:
    front = topoplan.pareto("allgather", "ring:4")
    page = read_fragment(front)
    assert f"lower bound on R/C of any schedule: {front.least_ratio}" in page.texts
    marks = [text for text in page.texts if text.startswith("front")]
    assert len(marks) == len(front.front) > 0
    assert read_fragment(topoplan.pareto("alltoall", "mesh:4x4", time_limit_s=0.01)).pictures == 1


def test_names_cannot_break_out_of_their_fragment() -> None:
    name = "<script>alert('x')</script>&"
    machine = Topology(name, (Device(name), Device("b")), ())
    assert "<script" not in str(machine._repr_html_()) and read_fragment(machine).pictures == 1


def test_the_core_imports_no_pictures() -> None:
    code = (
        "import sys, topoplan.topo.graph, topoplan.synth.plan; print([x for x in sys.modules if "
        "x.startswith('topoplan.') and ('.pictures' in x or '.report' in x)])"
    )
    done = run_command(sys.executable, "-c", code)
    assert done.stdout == "[]\n", (done.stdout, done.stderr)
