"""The largest and worst inputs: bounded work or one clear line, where minutes or gigabytes would go
otherwise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from needs import has_extra
from planned import synthesize

from topoplan.runtime.backend.plan_files import PlanFiles
from topoplan.synth.ir.collective import Collective
from topoplan.synth.plan import Plan
from topoplan.synth.plan_file import PlanFile
from topoplan.topo import files
from topoplan.topo.errors import InputError
from topoplan.topo.exact import load_json, parse_fraction
from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.formats.safe_xml import parse_xml
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.pictures import table
from topoplan.topo.pictures import text_tree as tree
from topoplan.topo.presets import preset
from topoplan.topo.probe import capture
from topoplan.topo.probe.linux import sysfs
from topoplan.topo.probe.linux.sysfs import list_gpus_and_nics, read_start
from topoplan.topo.schema import read_as
from topoplan.topo.topology_file import MAX_LINKS


def chain(switches: int, gpus: int = 2) -> Topology:
    """A CPU at the one end of a chain of switches, GPUs at the other."""
    names = ["cpu0", *(f"s{i}" for i in range(switches))]
    devices = [{"id": f"gpu{i}", "kind": "gpu"} for i in range(gpus)]
    devices += [
        {"id": name, "kind": "switch" if name != "cpu0" else "cpu", "family": "pcie"}
        for name in names
    ]
    pairs = [*pairwise(names), *((names[-1], f"gpu{i}") for i in range(gpus))]
    links = [
        {"src": a, "dst": b, "kind": "pcie", "bidirectional": True, "bandwidth_GBps": 1}
        for a, b in pairs
    ]
    return Topology.loads(json.dumps({"devices": devices, "links": links}))


def test_nothing_but_brackets_is_refused_before_lists_are_built() -> None:
    with pytest.raises(InputError, match="more than 2500000 values"):
        Topology.loads("[" + "[]," * 1_500_000 + "[]]")


def test_plans_may_hold_more_values_than_topologies() -> None:
    assert len(load_json("[" + "1," * 2_600_000 + "1]")) == 2_600_001


def test_a_file_of_too_many_links_is_refused_and_both_directions_count() -> None:
    link = {"src": "a", "dst": "b", "bidirectional": True}
    told = {"devices": [{"id": "a", "kind": "gpu"}], "links": [link] * (MAX_LINKS // 2 + 1)}
    with pytest.raises(InputError, match=f"and {MAX_LINKS + 2} directed links"):
        Topology.from_json(told, "large")


def test_bandwidths_without_a_common_denominator_are_refused() -> None:
    primes = [p for p in range(2, 400) if all(p % q for q in range(2, p))]
    devices = [{"id": "a", "kind": "gpu"}, {"id": "b", "kind": "gpu"}]
    links = [{"src": "a", "dst": "b", "bandwidth_GBps": f"1/{p}"} for p in primes]
    with pytest.raises(InputError, match="no common denominator of at most 100 digits"):
        Topology.from_json({"devices": devices, "links": links}, "odd")
    sums = Topology.from_json({"devices": devices, "links": links[:10]}, "even").capacity_GBps
    assert sums["a", "b"] == sum(Fraction(1, p) for p in primes[:10])


@pytest.mark.parametrize("number", [10**31, f"1{'0' * 40}", f"1{'0' * 40}/3"])
def test_numbers_that_nothing_measures_are_refused(number: object) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_fraction(number)
    assert parse_fraction(10**31 - 1) == 10**31 - 1


@pytest.mark.long
def test_a_long_chain_of_switches_has_a_fingerprint_whatever_its_names() -> None:
    long = chain(300)
    told = json.loads(long.dumps())
    for device in told["devices"]:
        device["id"] = "x" + device["id"]
    for link in told["links"]:
        link["src"], link["dst"] = "x" + link["src"], "x" + link["dst"]
    told["links"].reverse()
    assert Topology.from_json(told).fingerprint == long.fingerprint != chain(150).fingerprint


def test_switches_chained_beyond_all_machines_are_not_drawn_as_a_tree() -> None:
    with pytest.raises(InputError, match="a tree is drawn up to 100"):
        tree.write(chain(300))
    assert "gpu1" in tree.write(chain(20))


def test_a_table_counts_pairs_as_far_as_the_work_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "MAX_STEPS", 10_000)
    shown = table.write(chain(100, gpus=200))
    told = next(line for line in shown.splitlines() if line.startswith("GPU to GPU"))
    assert "pairs of the first" in told and "of 200 GPUs" in told


def test_folders_with_more_entries_than_any_machine_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "MAX_ENTRIES", {"sys/class/net": 3})
    for i in range(4):
        (tmp_path / "sys/class/net" / f"eth{i}").mkdir(parents=True)
    with pytest.raises(InputError, match="more than 3 entries in sys/class/net"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(("functions", "left"), [(1, 5), (8, 9)])
def test_more_nics_than_any_machine_has_are_one_a_bus_or_a_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, functions: int, left: int
) -> None:
    """The limit is 1024; with 64 there are as many ways to stay below it."""
    monkeypatch.setattr(sysfs, "MAX_GPUS_AND_NICS", 64)
    for i in range(65):
        bus, function = divmod(i, functions)
        name = f"{bus // 16:04x}:{bus % 16:02x}:00.{function}"
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "class").write_text("0x020000")
        device = tmp_path / f"sys/class/infiniband/mlx5_{i}/device"
        device.parent.mkdir(parents=True)
        device.symlink_to(folder)
    assert len(list_gpus_and_nics(tmp_path)) == left
    topology = resolve(str(tmp_path))
    assert sum(d.kind == "nic" for d in topology.devices) == left
    assert any("65 GPUs and NICs" in note for note in topology.notes)


def test_a_pipe_in_a_captured_machine_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        read_start(pipe, 10)
    with pytest.raises(InputError, match="a named pipe, not a file"):
        resolve(str(pipe))


@pytest.mark.parametrize("depth", [65, 500, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_json_is_one_line(depth: int, opening: str, closing: str) -> None:
    deep = opening * depth + "1" + closing * depth
    with pytest.raises(ValueError, match="nested deeper than 64"):
        load_json(deep)
    for read in (Topology.loads, Plan.loads, read_topology_text):
        for text in (f'{{"{name}": {deep}}}' for name in ("devices", "instances", "items")):
            with pytest.raises(InputError, match="nested deeper than 64") as error:
                read(text, "deep.json")
            assert str(error.value).startswith("deep.json: ")
    load_json(opening * 64 + "1" + closing * 64)


@pytest.mark.skipif(not has_extra("clusters"), reason="no extra clusters")
def test_deep_yaml_is_one_line() -> None:
    text = "- topology: x\n  cluster_default: true\n  tree: " + "[" * 100_000
    with pytest.raises(InputError, match="line 3: deeper than any topology"):
        read_topology_text(text, "topology.yaml")


@pytest.mark.parametrize(
    ("text", "name", "begins"),
    [
        ('{"devices": [{"id": "a", "kind": "gpu", "id": "b"}]}', "id", "id: a"),
        ('{"devices": [{"id": "a"}], "devices": [{"id": "b"}]}', "devices", "devices"),
        ('{"devices": [{"id": "a", "pci": {"x": 1, "x": 2}}]}', "x", "x: 1"),
    ],
)
def test_a_name_twice_in_an_object_is_refused(text: str, name: str, begins: str) -> None:
    for read in (Topology.loads, Plan.loads):
        with pytest.raises(InputError) as error:
            read(text, "box.json")
        assert str(error.value) == (
            f"box.json: not usable JSON: {name!r} is there twice in the object that begins with "
            f"{begins!r}; give it once"
        )


@pytest.mark.parametrize("between", [" ", "\n"])
def test_an_element_with_too_many_attributes_is_refused_before_it_is_built(between: str) -> None:
    attributes = [f"a{i}='>'" for i in range(700_000)]
    with pytest.raises(InputError, match="line 2: an element with more than 256 attributes"):
        parse_xml(f"<system>\n<gpu {between.join(attributes)}/></system>", "large.xml")
    read = parse_xml(f"<system><gpu {between.join(attributes[:256])}/></system>", "most.xml")
    assert len(read.children[0].attributes) == 256


def repeat_entries(plan: dict[str, Any]) -> None:
    first = plan["entries"][0]
    rows = [{**first, "min_bytes": i, "max_bytes": i + 1} for i in range(2_000)]
    plan["entries"] = [*rows[:-1], {**rows[-1], "max_bytes": None}]


def add_empty_steps(plan: dict[str, Any]) -> None:
    plan["schedules"][0]["step_s_per_GB"] += [0] * 1_000_000


def repeat_alternatives(plan: dict[str, Any]) -> None:
    plan["alternatives"] = [0] * 200_000


def repeat_schedules(plan: dict[str, Any]) -> None:
    plan["schedules"] += plan["schedules"][:1] * 5_000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (repeat_entries, "entries: expected at most 256, got 2000"),
        (add_empty_steps, r"schedules\[0\].step_s_per_GB: expected at most 16384, got 10000"),
        (repeat_alternatives, "alternatives: expected at most 256, got 200000"),
        (repeat_schedules, "schedules: expected at most 4608, got 500"),
    ],
)
def test_a_plan_that_lists_too_much_is_refused_before_it_is_hashed(
    change: Callable[[dict[str, Any]], None], says: str
) -> None:
    plan = synthesize(Collective("allreduce", 2), preset("ring:2"), "ring").plan.to_json()
    change(plan)
    with pytest.raises(InputError, match=f"large.json: {says}"):
        Plan.loads(json.dumps(plan), "large.json")  # its hash is wrong too, which costs time to say
    with pytest.raises(InputError, match="expected a list of at most"):
        read_as(plan, PlanFile, "large.json")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero on this system")
def test_a_device_that_never_ends_is_no_plan() -> None:
    with pytest.raises(InputError, match="/dev/zero: cannot be read: a device, not a file"):
        Plan.load("/dev/zero")


READERS: dict[str, Callable[[str], object]] = {
    "plan.json": Plan.load,
    "topology.json": Topology.load,
    "topology": resolve,
    "plans": lambda path: PlanFiles([path]),
}


@pytest.mark.parametrize("name", READERS)
def test_a_named_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    """Opening it would wait for a writer."""
    pipe = tmp_path / name
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=f"{name}.*: a named pipe, not a file .*copy its content"):
        READERS[name](str(pipe))


def test_a_plan_is_read_from_a_pipe_that_the_shell_opened() -> None:
    plan = synthesize(Collective("allreduce", 2), preset("ring:2"), "ring").plan
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write(json.dumps(plan.to_json()))
    try:
        assert files.read_start(f"/dev/fd/{reading}", 100) == b""  # it would be lost
        assert Plan.load(f"/dev/fd/{reading}").hash == plan.hash
    finally:
        os.close(reading)
