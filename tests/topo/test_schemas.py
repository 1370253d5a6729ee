"""docs/schemas/: valid for every file that is written, and as strict as the readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from needs import long_cases
from planned import synthesize
from recorded_machines import READ
from referencing import Registry, Resource

from examples.lab.settings import Settings
from topoplan.synth.cost.host_costs import HostCosts, with_host
from topoplan.synth.ir.collective import collective_on
from topoplan.topo import probe_json
from topoplan.topo.errors import InputError
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import preset

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = {path.name: json.loads(path.read_text()) for path in (ROOT / "docs/schemas").iterdir()}
REGISTRY = Registry().with_resources(
    (name, Resource.from_contents(schema)) for name, schema in SCHEMAS.items()
)


@cache
def make_validator(name: str) -> Draft202012Validator:
    schema = SCHEMAS[f"{name}.schema.json"]
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, registry=REGISTRY)


def validate(data: Any, name: str) -> None:
    make_validator(name).validate(data)


@pytest.mark.parametrize(
    "name", ["dgx1", "dgx-a100:2", "mi250", "pcie-2socket", "torus:4x4@25", "star:5", "switch:8"]
)
def test_presets_are_valid(name: str) -> None:
    validate(json.loads(preset(name).dumps()), "topology")


OF_EACH_FORMAT = (
    "hwloc/nvidiaDGX2.xml",
    "nccl_xml/oci/H100-topology.xml",
    "nccl_xml/rccl/topo_4p3l.xml",
    "nvlink/h100pcie-pair_R.txt",
    "smi/13-a100pcie-4gpu-one-bridge-missing-mlx5_k8s-device-plugin-436.txt",
)


@pytest.mark.parametrize("name", long_cases(READ, *(READ.keys() - OF_EACH_FORMAT)))
def test_recorded_machines_are_valid(name: str, recorded: Callable[[str], Path]) -> None:
    topology = resolve(str(recorded(name)))
    validate(json.loads(topology.dumps()), "topology")
    validate(json.loads(probe_json.write(topology)), "topology")


def test_plans_host_costs_and_settings_are_valid(tmp_path: Path) -> None:
    validate(HostCosts().to_json(), "host-costs")
    validate({"epochs": 3, "hidden": []}, "lab-settings")
    for topology, strategy in (
        (with_host(preset("switch:4"), HostCosts(cores=8)), "packing"),
        (preset("pcie-2socket"), "direct"),
    ):
        validate(json.loads(topology.dumps()), "topology")
        for collective in ("allreduce", "alltoall"):
            plan = synthesize(collective_on(collective, topology), topology, strategy).plan
            plan.save(tmp_path / "plan.json", overwrite=True)
            validate(json.loads((tmp_path / "plan.json").read_text()), "plan")


DEVICES = [{"id": "a"}, {"id": "b"}]
NO_TOPOLOGIES: list[dict[str, Any]] = [
    {},
    {"devices": []},
    {"devices": [{}]},
    {"devices": [{"id": ""}]},
    {"devices": [{"id": "a\n"}]},
    {"devices": [{"id": "a", "kind": "tpu"}]},
    {"devices": [{"id": "a", "family": "token-ring"}]},
    {"devices": [{"id": "a", "can_copy": 1}]},
    {"devices": [{"id": "a", "numa_node": 0.5}]},
    {"devices": DEVICES, "format": "other"},
    {"devices": DEVICES, "version": 2},
    {"devices": DEVICES, "name": None},
    {"devices": DEVICES, "links": {}},
    *(
        {"devices": DEVICES, "links": [{"src": "a", "dst": "b", key: value}]}
        for key, value in (
            ("bandwidth_GBps", "fast"),
            ("bandwidth_GBps", True),
            ("latency_us", "1/0x"),
            ("count", 0),
            ("bidirectional", None),
            ("kind", 3),
        )
    ),
]


@pytest.mark.parametrize("data", NO_TOPOLOGIES, ids=str)
def test_what_the_reader_refuses_the_schema_refuses(data: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Topology.from_json(data)
    with pytest.raises(ValidationError):
        validate(data, "topology")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"epochs": 0}, "epochs 0: expected a whole number from 1 to 10000"),
        ({"learning_rate": float("nan")}, "learning rate nan: expected a number above 0"),
        ({"learning_rate": float("inf")}, "learning rate inf: expected a number above 0"),
        (
            {"hidden": (8, 0)},
            "hidden 8,0: expected a list of at most 16 items, each a whole number from 1 to 65536",
        ),
        ({"seed": -1}, "seed -1: expected a whole number from 0 to 2147483647"),
    ],
)
def test_settings_out_of_range_are_one_line_in_the_commands_words(
    given: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError) as caught:
        Settings(**given)
    assert str(caught.value) == says


def test_settings_read_back_equal() -> None:
    settings = Settings(epochs=3, hidden=(8, 4))
    assert Settings.from_json(json.loads(json.dumps({"epochs": 3, "hidden": [8, 4]}))) == settings
    with pytest.raises(InputError, match="settings: batch: expected a whole number, got 'x'"):
        Settings.from_json({"batch": "x"})
