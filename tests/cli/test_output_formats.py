"""`-o NAME.SUFFIX` implies the format, and pictures are PNG and PDF too."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from topoplan.cli.topoplan import main
from topoplan.synth.pictures.curves import Curve, draw_curves
from topoplan.topo.pictures.convert import convert_svg

needs_converter = pytest.mark.skipif(
    find_spec("vl_convert") is None, reason="vl-convert-python, the extra `pictures`, is missing"
)
SYNTH = ["synth", "--collective", "allreduce", "--topology", "ring:3"]
MAGIC = {".png": b"\x89PNG", ".pdf": b"%PDF-", ".svg": b"<svg "}


@pytest.mark.parametrize(
    ("arguments", "name", "begins"),
    [
        (["probe", "ring:3"], "x.svg", "<svg "),
        (["probe", "ring:3"], "x.SVG", "<svg "),
        (["probe", "ring:3"], "x.dot", "digraph"),
        (["probe", "ring:3"], "x.gv", "digraph"),
        (["probe", "ring:3"], "x.json", "{"),
        (["probe", "dgx1"], "x.xml", "<system"),
        (["probe", "dgx1", "--check"], "x.txt", "nothing wrong"),
        (["probe", "ring:3"], "x.txt", "ring:3"),
        (["probe", "ring:3"], "x.machine", "ring:3"),
        (["probe", "ring:3", "--format", "tree"], "x.svg", "ring:3"),
        (["probe", "ring:3", "--json"], "x.svg", "{"),
        (["place", "ring:4"], "x.json", "{"),
        (["place", "ring:4", "--format", "device-mesh"], "x.json", "#"),
        (SYNTH, "x.plan", "{"),
        ([*SYNTH, "--no-guard"], "x.json", None),
        ([*SYNTH[:-1], "full:4", "--no-guard"], "x.xml", "<graphs"),
    ],
)
def test_the_suffix_implies_the_format(
    arguments: list[str], name: str, begins: str | None, tmp_path: Path
) -> None:
    target = tmp_path / name
    if begins is None:  # an option of graph files, with a suffix of plans
        assert main([*arguments, "-o", str(target)]) == 2
        return
    assert main([*arguments, "-o", str(target)]) == 0
    assert target.read_text("utf-8").lstrip().startswith(begins)


def test_a_placement_as_json_has_the_hosts_of_ranks(tmp_path: Path) -> None:
    target = tmp_path / "order.json"
    assert main(["place", "dgx1", "--for", "stock", "-o", str(target)]) == 0
    assert sorted(json.loads(target.read_text())["order"]) == list(range(8))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["probe", "dgx1", "-o", "x.pptx"], ".svg, .png, .pdf, .dot, .gv, .json or .xml"),
        (["probe", "dgx1", "-o", "x.csv"], "--csv writes rows"),
        (["probe", "dgx1", "--for-vm", "-o", "x.svg"], "ends in .xml"),
        (["probe", "dgx1", "--format", "heat-map", "-o", "x.json"], ".svg, .png or .pdf"),
        ([*SYNTH, "-o", "x.svg"], ".json or .xml, or --format; --plot writes pictures"),
        ([*SYNTH, "--plot", "x.jpg"], ".svg, .png or .pdf"),
        ([*SYNTH, "--trace", "x.html"], ".svg, .png or .pdf"),
        (["place", "dgx1", "-o", "x.svg"], "ends in .json, or --format"),
        (["judge", "missing.log", "-o", "x.html"], "ends in .json or .prom"),
        (["report", "dgx1", "-o", "x.svg"], ".html or .htm; --pictures"),
        (["run", "--stock", "--plot", "x.jpg"], ".svg, .png or .pdf"),
        (["run", "plan.json", "--trace", "x.svg"], "ends in .json"),
    ],
)
def test_a_suffix_that_cannot_be_written_is_one_line(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and expected in said[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@needs_converter
def test_every_picture_is_png_and_pdf_too(tmp_path: Path) -> None:
    def name(what: str, suffix: str) -> str:
        return str(tmp_path / f"{what}{suffix}")

    for suffix in MAGIC:
        assert main(["probe", "dgx1", "-o", name("machine", suffix)]) == 0
        heat_map = ["probe", "dgx1", "--format", "heat-map"]
        assert main([*heat_map, "-o", name("rates", suffix)]) == 0
        drawn = ["--plot", name("curves", suffix), "--trace", name("timeline", suffix)]
        assert main([*SYNTH, "--size", "1M", *drawn]) == 0
    written = sorted(tmp_path.iterdir())
    assert len(written) == 12
    for target in written:
        assert target.read_bytes().startswith(MAGIC[target.suffix]), target.name


@needs_converter
def test_a_converted_picture_has_its_text_and_colours(tmp_path: Path) -> None:
    """A renderer that drops the variables of the style draws neither."""
    picture = draw_curves(
        "<&>", [Curve("plan", "plan", ((1024, 1.0), (4096, 2.0)))], None, alone=True
    )
    assert "var(--" in picture
    assert b"/Font" in convert_svg(picture, "pdf")
    blank = picture.replace("<text", "<desc").replace("</text", "</desc")
    assert b"/Font" not in convert_svg(blank, "pdf")


@needs_converter
def test_a_png_of_a_large_machine_is_bounded(tmp_path: Path) -> None:
    target = tmp_path / "x.png"
    assert main(["probe", "torus:8x8", "-o", str(target)]) == 0
    head = target.read_bytes()[:24]
    assert int.from_bytes(head[16:20], "big") * int.from_bytes(head[20:24], "big") <= 40_000_000


def test_png_without_the_converter_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    for arguments in (
        ["probe", "dgx1", "-o"],
        ["probe", "dgx1", "--format", "pdf", "-o"],
        [*SYNTH, "--plot"],
        [*SYNTH, "--trace"],
        ["report", "dgx1", "--pictures", "png", "-o"],
    ):
        target = tmp_path / ("x.html" if arguments[0] == "report" else "x.png")
        assert main([*arguments, str(target)]) == 2
        said = capsys.readouterr().err
        assert "pip install 'topoplan[pictures]'" in said and len(said.splitlines()) == 1
        assert not target.exists()


@pytest.mark.long
def test_a_report_writes_its_pictures_beside_it(tmp_path: Path) -> None:
    page = tmp_path / "ring.html"
    asked = ["report", "ring:3", "-o", str(page), "--pictures", "svg", "--time-limit", "0.1"]
    assert main(asked) == 0
    pictures = sorted(tmp_path.glob("*.svg"))
    assert pictures[0].name == "ring-01-machine.svg"
    assert "ring-02-allreduce.svg" in [picture.name for picture in pictures]
    assert len(pictures) == page.read_text("utf-8").count("<svg ")
    from xml.etree import ElementTree

    for picture in pictures:
        assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    page.unlink()
    assert main(asked) == 2, "the pictures are there already"


@pytest.mark.long
def test_a_report_has_a_box_for_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("n0 r0 s0\nn1 r0 s0\n")
    asked = ["report", str(hosts), "-o", str(tmp_path / "x.html"), "--time-limit", "0.1"]
    assert main(asked) == 2
    assert "(--box)" in capsys.readouterr().err
    assert main([*asked, "--box", "ring:3"]) == 0
    assert "6 GPUs" in (tmp_path / "x.html").read_text("utf-8")
    plan = tmp_path / "plan.json"
    assert main([*SYNTH, "-o", str(plan)]) == 0
    assert main(["report", str(plan), "--box", "dgx1", "-o", str(tmp_path / "y.html")]) == 2
    assert "leave --box out" in capsys.readouterr().err
