"""The files of topo-place."""

import json
from pathlib import Path

import pytest
from needs import has_extra

from topoplan.cli.topoplan import main

TREE = """\
switchname=leaf0 Nodes=n[0-1]
SwitchName=leaf1 Nodes=n2,n3 LinkSpeed=4
SwitchName=spine Switches=leaf[0-1]
"""


def test_a_placement_as_json_has_the_hosts_of_ranks(tmp_path: Path) -> None:
    target = tmp_path / "order.json"
    assert main(["place", "dgx1", "--for", "stock", "-o", str(target)]) == 0
    assert sorted(json.loads(target.read_text())["order"]) == list(range(8))


def test_an_explanation_says_in_which_order_the_stock_collective_is_faster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["synth", "allreduce", "dgx1", "--strategy", "packing", "--explain"]
    assert main(asked) == 0
    assert (
        "rank order: gloo's own algorithm is 2.00 times as fast in another one: 0,1,3,2,6,7,5,4 "
        "(topo-place" in capsys.readouterr().out
    )


@pytest.mark.skipif(not has_extra("clusters"), reason="no extra clusters")
def test_hosts_of_a_cluster_need_a_box(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "topology.conf"
    path.write_text(TREE)
    assert main(["place", str(path), "--box", "dgx-h100"]) == 0
    assert "note: no file gives the links between switches" in capsys.readouterr().out
    assert main(["place", str(path), "--box", "dgx-h100", "--network", "100"]) == 0
    assert "note:" not in capsys.readouterr().out
    assert main(["place", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
