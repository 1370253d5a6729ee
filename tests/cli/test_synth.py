"""topo-synth as it is used: JSON, tables, exit codes, one line for every error, nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from called import call_command
from launch import Ended
from needs import long_cases

from topoplan.synth.plan import Plan
from topoplan.synth.sizes import parse_size
from topoplan.topo.errors import InputError


def synth(*args: str, code: int = 0) -> Ended:
    done = call_command("synth", *args)
    assert done.returncode == code, done.stderr
    return done


def synth_json(*args: str) -> dict[str, Any]:
    done = synth(*args, "--json")
    return dict(json.loads(done.stdout))


CONTRACT = {
    "topology",
    "collective",
    "strategy",
    "size_bytes",
    "chunks",
    "steps",
    "rounds",
    "trees",
    "predicted",
    "bound",
    "gap",
    "verified",
    "synthesis_s",
}


def test_the_contract_of_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    out = synth_json(
        "--collective", "allreduce", "--topology", "dgx1", "--strategy", "packing", "-o", str(path)
    )
    assert set(out) >= CONTRACT
    assert out["topology"]["ranks"] == 8
    assert out["topology"]["fingerprint"] == Plan.load(path).topology.fingerprint
    assert out["plan_hash"] == Plan.load(path).hash
    assert out["bound"]["algbw_GBps"] == pytest.approx(600 / 7)
    assert set(out["predicted"]) == {"time_s", "algbw_GBps", "busbw_GBps"}
    assert out["gap"] == 0
    assert out["verified"] is True


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
        (TWO % "", 3, "no path leads to b"),
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
    long_cases(
        [
            ("rccl/topo_8p_rome.xml", 8),
            ("azure/ncv4-topo.xml", 4),
            ("oci/H100-topology.xml", 8),
        ],
        "rccl/topo_8p_rome.xml",
        "oci/H100-topology.xml",
    ),
)
def test_recorded_machines_give_verified_plans(
    recorded: Callable[[str], Path], tmp_path: Path, name: str, ranks: int
) -> None:
    path = tmp_path / "plan.json"
    out = synth_json(
        "--collective",
        "allreduce",
        "--topology",
        str(recorded(f"nccl_xml/{name}")),
        "-o",
        str(path),
        "--time-limit",
        "20",
    )
    assert out["verified"] is True
    assert out["topology"]["ranks"] == ranks
    assert out["gap"] <= 0.13
    assert out["entries"][-1]["gap"] <= 1e-6
    assert Plan.load(path).collective.ranks == ranks


def test_a_broken_link_is_planned_around_and_priced() -> None:
    args = ("--collective", "allreduce", "--topology", "dgx1", "--strategy", "packing")
    out = synth_json(*args, "--without-link", "0:3", "--scale-link", "gpu1:gpu2=0.5")
    assert out["topology"]["name"] == "dgx1 (without gpu0-gpu3, gpu1-gpu2 at 0.5)"
    assert out["bound"]["algbw_GBps_exact"] == str(Fraction(600 - 25, 7) - Fraction(25, 14))
    assert (out["healthy"]["bound_GBps"], out["gap"]) == (pytest.approx(600 / 7), 0.0)
    assert out["healthy"]["bound_ratio"] == pytest.approx(out["bound"]["algbw_GBps"] / (600 / 7))
    assert out["healthy"]["time_ratio"] > 1
    out = synth_json(*args, "--without-rank", "5", "--without-rank", "6")
    assert out["topology"]["ranks"] == 6


def test_the_root_is_in_the_numbering_of_the_machine_as_given() -> None:
    args = (
        "--collective",
        "broadcast",
        "--topology",
        "path:4",
        "--strategy",
        "packing",
        "--without-rank",
        "0",
    )
    out = synth_json(*args, "--root", "2")
    assert (out["root"], out["root_device"], out["root_as_given"]) == (1, "gpu2", 2)
    assert (
        "root: gpu2, rank 1 of the plan, 2 of the machine as given"
        in synth(*args, "--root", "2").stdout
    )
    assert "gpu2, rank 1 of the plan, 2 of" in synth(*args, "--root", "2", "--bound-only").stdout
    assert synth_json(*args)["root_device"] == "gpu1"  # the first that stays
    error = synth(*args, "--root", "0", code=2).stderr
    assert (
        "root 0: gpu0 is left out" in error
        and error.endswith("(--root)\n")
        and len(error.splitlines()) == 1
    )
    assert "a root between 0 and 3, got 4" in synth(*args, "--root", "4", code=2).stderr


def test_a_machine_in_two_pieces_is_infeasible_and_the_cut_is_named() -> None:
    args = ("--collective", "allreduce", "--topology", "path:4", "--without-link", "1:2")
    error = synth(*args, code=3).stderr
    assert "no link leads out of the cut {gpu0, gpu1}" in error


def test_few_trees_on_request_and_a_table_of_what_there_was() -> None:
    args = ("--collective", "allreduce", "--topology", "mesh:4x4", "--strategy", "packing")
    out = synth_json(*args, "--epsilon", "0.1")
    assert (out["trees"], 0 < out["gap"] <= 0.1) == (3, True)
    assert [row["trees"] for row in out["forests"] if row["kept"]] == [3]
    assert all(0 <= row["gap"] < 1 and row["depth"] >= 4 for row in out["forests"])
    shown = synth(*args, "--max-trees", "3").stdout
    assert "trees considered" in shown and "whole numbers" in shown
    error = synth(*args, "--max-depth", "2", "--time-limit", "5", code=3).stderr
    assert "a depth of at most 2" in error and "4 deep" in error


@pytest.mark.parametrize(
    "args",
    [
        ("--epsilon", "much"),
        ("--epsilon", "1"),
        ("--epsilon", "-0.1"),
        ("--max-trees", "0"),
        ("--max-depth", "0"),
        ("--without-link", "0:7:9"),
        ("--without-rank", "8"),
        ("--scale-link", "0:1"),
        ("--strategy", "ring", "--epsilon", "0.1"),
        ("--strategy", "direct", "--max-depth", "2"),
        ("--bound-only", "--explain"),
        ("--bound-only", "-o", "plan.json"),
        ("--without-link", "0:3", "--scale-link", "gpu0:gpu3=2"),
    ],
)
def test_bad_wishes_are_refused_in_one_line(args: tuple[str, ...]) -> None:
    done = synth("--collective", "allreduce", "--topology", "dgx1", *args, code=2)
    assert done.stdout == "" and len(done.stderr.strip().splitlines()) == 1


def test_a_time_limit_with_a_plan_in_hand_is_no_failure() -> None:
    out = synth_json("--collective", "allreduce", "--topology", "mesh:8x8", "--time-limit", "0.1")
    assert out["verified"] and 0 <= out["gap"] < 1


@pytest.mark.long
def test_topo_and_synth_never_import_torch() -> None:
    code = (
        "import sys, topoplan.topo, topoplan.synth, topoplan.synth.planner.synthesize, "
        "topoplan.topo.loader.resolve; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sizes() -> None:
    assert [parse_size(x) for x in ("4096", "64K", "1MiB", "2g", "8B")] == [
        4096,
        65536,
        1 << 20,
        2 << 30,
        8,
    ]
    assert [parse_size(x) for x in ("1GB", "64kB", "3mb", "1TB", "1GiB", "1kib")] == [
        10**9,
        64_000,
        3_000_000,
        10**12,
        1 << 30,
        1 << 10,
    ]
    for bad in ("", "K", "-1", "1.5M", "1X", "1e6"):
        with pytest.raises(InputError):
            parse_size(bad)


def test_wrong_names_are_refused_before_solvers_are_imported() -> None:
    code = (
        "import sys\n"
        "from topoplan.cli.synth import main\n"
        "for names in ('alreduce', 'ring:4', 'ring'), ('allreduce', 'rong:4', 'ring'), "
        "('allreduce', 'ring:4', 'rong'):\n"
        "    flags = ('--collective', '--topology', '--strategy')\n"
        "    assert main([x for pair in zip(flags, names) for x in pair]) == 2\n"
        "assert not {'numpy', 'scipy', 'networkx', 'ortools'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("unknown ") == 3
