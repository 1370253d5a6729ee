"""topo-probe on machines at hand: the real pynvml on a compiled stand-in of NVML, with the /sys
that goes with it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from called import call_command
from fake_nvml import (
    hybrid_cube_mesh,
    lost_gpu,
    probe,
    two_socket_pcie,
)
from needs import has_extra

from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import preset


def ranks(text: str) -> list[str]:
    return list(Topology.loads(text).ranks)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("2,0", ["gpu2", "gpu0"]),
        ("3,9,1", ["gpu3"]),
        ("1,1,2", ["gpu1"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["gpu0"]),
        ("GPU-does-not-exist,0", []),
    ],
)
def test_ranks_follow_cuda_visible_devices(shown: str, expected: list[str], tmp_path: Path) -> None:
    done = probe(two_socket_pcie(), tmp_path, "--json", env={"CUDA_VISIBLE_DEVICES": shown})
    assert done.returncode == 0, done.stderr
    topology = Topology.loads(done.stdout)
    assert list(topology.ranks) == expected
    if len(expected) < 4:
        assert any("hidden by CUDA_VISIBLE_DEVICES" in note for note in topology.extra["notes"])


def test_uuids_name_gpus_by_their_beginnings(tmp_path: Path) -> None:
    everything = json.loads(probe(two_socket_pcie(), tmp_path, "--json").stdout)
    uuids = {d["id"]: d["uuid"] for d in everything["devices"] if d["kind"] == "gpu"}
    done = probe(
        two_socket_pcie(),
        tmp_path,
        "--json",
        env={"CUDA_VISIBLE_DEVICES": f"{uuids['gpu3']},{uuids['gpu1']}"},
    )
    assert ranks(done.stdout) == ["gpu3", "gpu1"]
    common = uuids["gpu0"][:8]
    assert all(uuid.startswith(common) for uuid in uuids.values())
    assert (
        ranks(
            probe(
                two_socket_pcie(), tmp_path, "--json", env={"CUDA_VISIBLE_DEVICES": common}
            ).stdout
        )
        == []
    )


def test_json_holds_facts_with_sources_verdicts_and_findings(tmp_path: Path) -> None:
    data = json.loads(probe(lost_gpu(), tmp_path, "--json").stdout)
    facts = {(f["subject"], f["key"]): f for f in data["facts"]}
    assert facts["gpu/0", "uuid"]["source"] == "nvmlDeviceGetUUID" and facts["gpu/0", "uuid"][
        "value"
    ].startswith("GPU-")
    assert facts["nvml", "driver"]["value"] == "570.86.15"
    assert "lost" in str(facts["gpu/3", "lost"]["value"]).lower()
    assert all(("value" in f) != ("missing" in f) and f["source"] for f in data["facts"])
    if has_extra("gpudirect"):
        p2p = {(v["a"], v["b"]): v["answer"] for v in data["gpudirect"] if v["kind"] == "p2p"}
        assert len(p2p) == 7 * 6 // 2 and set(p2p.values()) <= {"yes", "no", "unknown"}
    if has_extra("doctor"):
        lost = [f["severity"] for f in data["findings"] if f["what"] == "gpu-lost"]
        assert lost == ["error"]
    back = Topology.loads(json.dumps(data))
    assert back.fingerprint == data["fingerprint"] and "findings" not in back.extra


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["dgx1", "--sysfs-root", "/nowhere"], "leave TOPOLOGY out"),
        (["--sysfs-root", "/nowhere"], "/nowhere"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: list[str], says: str) -> None:
    done = call_command("probe", *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1 and says in done.stderr


def test_smi_text_and_tree_of_the_machine(tmp_path: Path) -> None:
    done = probe(hybrid_cube_mesh(), tmp_path, "--format", "smi")
    assert done.stdout.splitlines()[0].split()[:8] == [f"GPU{i}" for i in range(8)]
    file = tmp_path / "matrix.txt"
    file.write_text(done.stdout)
    linked = {
        pair: c
        for pair, c in resolve(str(file)).capacity_GBps.items()
        if "gpu" in pair[0] and "gpu" in pair[1]
    }
    assert linked == preset("dgx1").capacity_GBps
    tree = probe(hybrid_cube_mesh(), tmp_path, "--format", "tree").stdout
    assert "gpu0 · rank 0" in tree and "NVLink 50 to" in tree
