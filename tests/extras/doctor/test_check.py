"""topo-probe --check on machines at hand: the real pynvml on a compiled stand-in of NVML."""

from __future__ import annotations

import json
from pathlib import Path

from fake_nvml import bridged_pairs, hybrid_cube_mesh, lost_gpu, probe


def test_check_ends_with_1_on_errors_only(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    sick = probe(lost_gpu(), tmp_path / "a", "--check")
    assert sick.returncode == 1 and "error: gpu3" in sick.stdout and "advice: " in sick.stdout
    healthy = probe(hybrid_cube_mesh(), tmp_path / "b", "--check")
    assert healthy.returncode == 0 and "error" not in healthy.stdout


def test_check_with_json_says_errors_on_standard_error_too(tmp_path: Path) -> None:
    done = probe(lost_gpu(), tmp_path, "--check", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["findings"]
    assert done.stderr.startswith("topo-probe: gpu3")


def test_a_missing_bridge_is_a_finding(tmp_path: Path) -> None:
    found = json.loads(probe(bridged_pairs(missing=True), tmp_path, "--json").stdout)["findings"]
    assert any(f["what"] == "missing-bridge" for f in found)
