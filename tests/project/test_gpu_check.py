"""`make gpu-check` on the compiled stand-in of NVML: what it writes down, and that a second run
replaces the first.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from fake_library import serve
from fake_nvml import hybrid_cube_mesh, nvswitch_box

from topoplan.topo.probe.nvml.questions import read_nvml

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/gpu_check.py"


@pytest.fixture
def gpu_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_machine_is_recorded_once_beside_others_and_without_its_identity(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "hardware.md"
    page.write_text(f"{gpu_check.HEAD}\n## {gpu_check.CHANGED}\n\n- All of it.\n")
    for machine in (hybrid_cube_mesh(), nvswitch_box(), hybrid_cube_mesh()):
        serve(monkeypatch, machine)
        assert gpu_check.main(page) == 0
    uuids = [str(fact.value) for fact in read_nvml().items if fact.key == "uuid"]
    text = page.read_text()
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert text.startswith(gpu_check.HEAD.rstrip())
    assert len(titles) == len(set(titles)) == 2
    assert "gpu7 · rank 7" in text and "NVLink 50 to" in text and "NVSwitch" in text
    assert uuids and not any(uuid in text for uuid in uuids)


def test_without_a_gpu_nothing_is_recorded(
    gpu_check: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine = hybrid_cube_mesh()
    machine.fail("nvmlInit_v2", 9)
    machine.fail("nvmlInitWithFlags", 9)
    serve(monkeypatch, machine)
    assert gpu_check.main(tmp_path / "hardware.md") == 1
    assert not (tmp_path / "hardware.md").exists()
    assert "no GPU answers" in capsys.readouterr().err
