"""The files of topo-report: pictures beside the page, machines of boxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from topoplan.cli.topoplan import main

SYNTH = ["synth", "--collective", "allreduce", "--topology", "ring:2"]


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
