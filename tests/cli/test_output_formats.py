"""`-o NAME.SUFFIX` implies the format, and pictures are PNG and PDF too."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from needs import has_extra, list_runnable

from topoplan.cli.topoplan import main
from topoplan.synth.pictures.curves import Curve, draw_curves
from topoplan.topo.pictures.convert import convert_svg

needs_converter = pytest.mark.skipif(
    find_spec("vl_convert") is None, reason="vl-convert-python, the extra `pictures`, is missing"
)
SYNTH = ["synth", "--collective", "allreduce", "--topology", "ring:3"]
PICTURES = ".svg, .png, .pdf, " if has_extra("pictures") else ""
MAGIC = {".png": b"\x89PNG", ".pdf": b"%PDF-", ".svg": b"<svg "}


@pytest.mark.parametrize(
    ("arguments", "name", "begins"),
    list_runnable(
        [
            *([(["probe", "ring:3"], "x.svg", "<svg ")] * has_extra("pictures")),
            *([(["probe", "ring:3"], "x.SVG", "<svg ")] * has_extra("pictures")),
            *([(["probe", "ring:3"], "x.dot", "digraph")] * has_extra("pictures")),
            *([(["probe", "ring:3"], "x.gv", "digraph")] * has_extra("pictures")),
            (["probe", "ring:3"], "x.json", "{"),
            *([(["probe", "dgx1", "--check"], "x.txt", "nothing wrong")] * has_extra("doctor")),
            (["probe", "ring:3"], "x.txt", "ring:3"),
            (["probe", "ring:3"], "x.machine", "ring:3"),
            (["probe", "ring:3", "--format", "tree"], "x.svg", "ring:3"),
            (["probe", "ring:3", "--json"], "x.svg", "{"),
            (["place", "ring:4"], "x.json", "{"),
            (["place", "ring:4", "--format", "device-mesh"], "x.json", "#"),
            (SYNTH, "x.plan", "{"),
        ]
    ),
)
def test_the_suffix_implies_the_format(
    arguments: list[str], name: str, begins: str, tmp_path: Path
) -> None:
    target = tmp_path / name
    assert main([*arguments, "-o", str(target)]) == 0
    assert target.read_text("utf-8").lstrip().startswith(begins)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    list_runnable(
        [
            (["probe", "dgx1", "-o", "x.pptx"], f"{PICTURES}.dot, .gv, .json or .xml"),
            (["probe", "dgx1", "-o", "x.csv"], "--csv writes rows"),
            *(
                [(["probe", "dgx1", "--format", "heat-map", "-o", "x.json"], ".svg, .png or .pdf")]
                * has_extra("pictures")
            ),
            ([*SYNTH, "-o", "x.svg"], ", or --format; --plot writes pictures"),
            ([*SYNTH, "--plot", "x.jpg"], ".svg, .png or .pdf"),
            *([([*SYNTH, "--trace", "x.html"], ".svg, .png or .pdf")] * has_extra("traces")),
            (["place", "dgx1", "-o", "x.svg"], "ends in .json, or --format"),
            (["judge", "missing.log", "-o", "x.html"], "ends in .json or .prom"),
            (["report", "dgx1", "-o", "x.svg"], ".html or .htm; --pictures"),
            (["run", "--stock", "--plot", "x.jpg"], ".svg, .png or .pdf"),
        ]
    ),
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
        if has_extra("pictures"):
            assert main(["probe", "dgx1", "-o", name("machine", suffix)]) == 0
            heat_map = ["probe", "dgx1", "--format", "heat-map"]
            assert main([*heat_map, "-o", name("rates", suffix)]) == 0
        assert main([*SYNTH, "--plot", name("curves", suffix)]) == 0
        if has_extra("traces"):
            traced = [*SYNTH, "--size", "1M", "--trace", name("timeline", suffix)]
            assert main(traced) == 0
    written = sorted(tmp_path.iterdir())
    drawn = 1 + 2 * has_extra("pictures") + has_extra("traces")
    assert len(written) == len(MAGIC) * drawn
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
@pytest.mark.skipif(not has_extra("pictures"), reason="no extra pictures")
def test_a_png_of_a_large_machine_is_bounded(tmp_path: Path) -> None:
    target = tmp_path / "x.png"
    assert main(["probe", "torus:8x8", "-o", str(target)]) == 0
    head = target.read_bytes()[:24]
    assert int.from_bytes(head[16:20], "big") * int.from_bytes(head[20:24], "big") <= 40_000_000


def test_png_without_the_converter_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    lines = (
        *([["probe", "dgx1", "-o"]] * has_extra("pictures")),
        *([["probe", "dgx1", "--format", "pdf", "-o"]] * has_extra("pictures")),
        [*SYNTH, "--plot"],
        *([[*SYNTH, "--trace"]] * has_extra("traces")),
        ["report", "dgx1", "--pictures", "png", "-o"],
    )
    for arguments in list_runnable(lines):
        target = tmp_path / ("x.html" if arguments[0] == "report" else "x.png")
        assert main([*arguments, str(target)]) == 2
        said = capsys.readouterr().err
        assert "pip install 'topoplan[pictures]'" in said and len(said.splitlines()) == 1
        assert not target.exists()
