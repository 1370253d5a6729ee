"""topo-synth as it is used: JSON, tables, exit codes, one line for every error, nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topoplan.cli.sizes import parse_size
from topoplan.synth.plan import Plan
from topoplan.topo.errors import InputError


def synth(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "topoplan.cli.synth", *args], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def synth_json(*args: str) -> dict[str, Any]:
    done = synth(*args, "--json")
    return dict(json.loads(done.stdout))


CONTRACT = {
    "topology", "collective", "strategy", "size_bytes", "chunks", "steps", "rounds", "trees", "predicted", "bound", "gap",
    "verified", "synthesis_s",
}  # fmt: skip


def test_the_contract_of_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    out = synth_json("--collective", "allreduce", "--topology", "dgx1", "-o", str(path))
    assert set(out) >= CONTRACT
    assert out["topology"]["ranks"] == 8
    assert out["topology"]["fingerprint"] == Plan.load(path).topology.fingerprint
    assert out["plan_hash"] == Plan.load(path).hash
    assert out["bound"]["algbw_GBps"] == pytest.approx(600 / 7)
    assert set(out["predicted"]) == {"time_s", "algbw_GBps", "busbw_GBps"}
    assert out["gap"] == 0
    assert out["verified"] is True


def test_pareto_rows_have_the_contracts_fields() -> None:
    out = synth_json("--collective", "allgather", "--topology", "dgx1", "--pareto")
    rows = {(r["chunks"], r["steps"], r["rounds"]): r for r in out["rows"]}
    keys = {"chunks", "steps", "rounds", "status", "latency_optimal", "bandwidth_optimal", "synthesis_s"}
    assert all(set(row) >= keys for row in out["rows"])
    assert {k for k, r in rows.items() if r["status"] == "feasible" and not r["dominated"]} == {(2, 2, 3), (6, 3, 7)}
    assert out["complete"] is True


def test_bound_only_makes_no_plan() -> None:
    out = synth_json("--collective", "allreduce", "--topology", "mesh:4x4", "--bound-only")
    assert out["bound"]["algbw_GBps"] == pytest.approx(1.6)
    assert out["strategy"] is None
    assert out["verified"] is False


def test_tables_are_for_people() -> None:
    done = synth("--collective", "allreduce", "--topology", "switch:4")
    assert "at most 0.6667 (exactly 2/3) GB/s" in done.stdout
    assert done.stderr == ""


LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE system [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">'
    '<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]><system version="1">&c;</system>'
)
TWO = '{"devices": [{"id": "a"}, {"id": "b"}], "links": [%s]}'


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("", 2, "topology"),
        ("{", 2, "line 1"),
        ('<system version="1"><cpu numaid="0">', 2, "line 1"),
        (LAUGHS, 2, ""),
        (TWO % '{"src": "a", "dst": "b", "bandwidth_GBps": -5}', 2, "bandwidth_GBps is -5"),
        (TWO % '{"src": "a", "dst": "b", "bandwidth_GBps": NaN}', 2, "NaN"),
        (TWO % '{"src": "a", "dst": "c"}', 2, "names 'c'"),
        (TWO % "", 3, "no way leads to b"),
        ('{"devices": [{"id": "a"}]}', 2, "at least two ranks"),
        ('{"devices": [{"id": "a", "kind": "toaster"}]}', 2, "toaster"),
    ],
)
def test_bad_topologies_get_one_clear_line(tmp_path: Path, text: str, code: int, says: str) -> None:
    path, out = tmp_path / "topology.txt", tmp_path / "plan.json"
    path.write_text(text)
    done = synth("--collective", "allreduce", "--topology", str(path), "-o", str(out), code=code)
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("topo-synth: error: ")
    assert says in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--collective", "allreduce", "--topology", "nowhere.xml"], 2),
        (["--collective", "allreduce", "--topology", "dgx9"], 2),
        (["--collective", "allsum", "--topology", "dgx1"], 2),
        (["--collective", "allreduce", "--topology", "dgx1", "--strategy", "magic"], 2),
        (["--collective", "allreduce", "--topology", "dgx1", "--size", "many"], 2),
        (["--collective", "allreduce", "--topology", "dgx1", "--time-limit", "0"], 2),
        (["--collective", "broadcast", "--topology", "dgx1", "--root", "8"], 2),
        (["--collective", "allreduce", "--topology", "dgx1", "--root", "1"], 2),
        (["--collective", "allgather", "--topology", "dgx1", "--instance", "1,2"], 2),
        (["--topology", "dgx1"], 2),
        (["--collective", "allreduce", "--topology", "mesh:3x3", "--strategy", "ring"], 3),
        (["--collective", "allreduce", "--topology", "ring:1"], 2),
    ],
)
def test_bad_arguments_get_one_clear_line(args: list[str], code: int) -> None:
    done = synth(*args, code=code)
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_existing_plan_is_not_replaced_without_force(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("precious")
    args = ["--collective", "allreduce", "--topology", "ring:3", "-o", str(path)]
    assert "--force" in synth(*args, code=2).stderr
    assert path.read_text() == "precious"
    synth(*args, "--force")
    assert Plan.load(path).collective.ranks == 3


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("rccl/topo_8p_rome.xml", 8),
        ("rccl/topo_8p_940.xml", 8),
        ("azure/ncv4-topo.xml", 4),
        ("oci/H100-topology.xml", 8),
    ],
)
def test_recorded_machines_give_verified_plans(
    recorded: Callable[[str], Path], tmp_path: Path, name: str, ranks: int
) -> None:
    path = tmp_path / "plan.json"
    out = synth_json(
        "--collective", "allreduce", "--topology", str(recorded(f"nccl_xml/{name}")), "-o", str(path), "--time-limit", "20"
    )  # fmt: skip
    assert out["verified"] is True
    assert out["topology"]["ranks"] == ranks
    assert out["gap"] <= 0.12
    assert Plan.load(path).collective.ranks == ranks


def test_topo_and_synth_never_import_torch() -> None:
    code = "import sys, topoplan.topo, topoplan.synth, topoplan.synth.synthesize, topoplan.topo.resolve; " \
           "sys.exit('torch' in sys.modules)"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sizes() -> None:
    assert [parse_size(x) for x in ("4096", "64K", "1MiB", "2g", "8B")] == [4096, 65536, 1 << 20, 2 << 30, 8]
    for bad in ("", "K", "-1", "1.5M", "1X", "1e6"):
        with pytest.raises(InputError):
            parse_size(bad)
