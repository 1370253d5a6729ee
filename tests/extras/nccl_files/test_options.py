"""The options of topo-synth for NCCL's and RCCL's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from topoplan.cli.topoplan import main

SYNTH = ["synth", "--collective", "allreduce", "--topology"]


def test_a_graph_file_is_known_by_its_suffix(tmp_path: Path) -> None:
    plan, graph = tmp_path / "x.json", tmp_path / "x.xml"
    assert main([*SYNTH, "ring:2", "--no-guard", "-o", str(plan)]) == 2, "an option of graph files"
    assert main([*SYNTH, "full:4", "--no-guard", "-o", str(graph)]) == 0
    assert graph.read_text("utf-8").startswith("<graphs")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ring:2", "--format", "nccl-graf"], "(did you mean 'nccl-graph'?)"),
        (["ring:2", "-o", "x.svg"], ".json or .xml, or --format; --plot writes pictures"),
        (["dgx1", "--group", "0,1", "--format", "nccl-graph"], "that format is for whole machines"),
        (["ring:2", "--hosts", "2"], "--hosts without --format nccl-graph: it has no effect then"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main([*SYNTH, *arguments])
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert (code, len(said.splitlines())) == (2, 1)
    assert says in said
