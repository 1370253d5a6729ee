"""topo-probe writes NCCL's XML, for any machine and for virtual ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from called import call_command
from fake_nvml import nvswitch_box, probe

from topoplan.cli.probe import main
from topoplan.topo.extras.nccl_topology import fill_skeleton, is_skeleton
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import preset


def test_nccl_xml_reads_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dgx-a100", "--format", "nccl-xml", "-o", str(tmp_path / "topo.xml")]) == 0
    assert capsys.readouterr().out == ""
    assert resolve(str(tmp_path / "topo.xml")).fingerprint == preset("dgx-a100").fingerprint


def test_a_format_that_cannot_say_it_leaves_the_output_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "cpu.json").write_text('{"devices": [{"id": "cpu0", "kind": "cpu"}]}')
    (tmp_path / "out.xml").write_text("kept")
    files = (str(tmp_path / "cpu.json"), "-o", str(tmp_path / "out.xml"))
    done = call_command("probe", *files, "--format", "nccl-xml", "--force")
    assert done.returncode == 2 and "no GPUs" in done.stderr and done.stderr.count("\n") == 1
    assert (tmp_path / "out.xml").read_text() == "kept"


def test_a_file_for_a_vm_names_its_addresses_and_reads_back_on_it(tmp_path: Path) -> None:
    machine = nvswitch_box()
    done = probe(machine, tmp_path, "--for-vm")
    assert done.returncode == 0, done.stderr
    live = Topology.loads(probe(machine, tmp_path, "--json").stdout)
    assert all(f'busid="{live.by_id[gpu].bus_id}"' in done.stdout for gpu in live.ranks)
    assert "<gpu" not in done.stdout and "topoplan_" not in done.stdout
    assert is_skeleton(done.stdout)
    filled = fill_skeleton(done.stdout, "topo.xml", live)
    assert filled.ranks == live.ranks
    assert filled.capacity_GBps["gpu0", "nvswitch0"] == live.capacity_GBps["gpu0", "nvswitch0"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--for-vm"], "PCI address"),
        (["--for-vm", "--format", "json"], "leave --format out"),
        (["ring:2", "--for-vm"], "the file of one host"),
        (["--for-vm", "-o", "x.svg"], "ends in .xml"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: list[str], says: str) -> None:
    done = call_command("probe", "dgx1", *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1 and says in done.stderr


@pytest.mark.parametrize("form", [[], ["--format", "nccl-xml"]])
def test_a_name_that_ends_in_xml_says_the_format(form: list[str], tmp_path: Path) -> None:
    assert main(["dgx1", *form, "-o", str(tmp_path / "x.xml")]) == 0
    assert (tmp_path / "x.xml").read_text().startswith("<system")
