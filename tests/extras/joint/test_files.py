"""Joint plans as files: their schema, and what is no file of one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from topoplan.synth.extras.joint.joint_calls import read_calls
from topoplan.synth.extras.joint.plan import JointPlan
from topoplan.synth.extras.joint.synthesize import synthesize_joint
from topoplan.topo.errors import InputError
from topoplan.topo.presets import preset

SCHEMAS = Path(__file__).resolve().parents[3] / "docs/schemas"


def test_joint_plans_are_valid(tmp_path: Path) -> None:
    contents = {path.name: json.loads(path.read_text()) for path in SCHEMAS.iterdir()}
    registry = Registry().with_resources(
        (name, Resource.from_contents(schema)) for name, schema in contents.items()
    )
    schema = contents["joint-plan.schema.json"]
    Draft202012Validator.check_schema(schema)
    synthesize_joint("tp:allgather:1M=0,1|2,3", "ring:4").save(tmp_path / "joint.json")
    written = json.loads((tmp_path / "joint.json").read_text())
    Draft202012Validator(schema, registry=registry).validate(written)


READERS: dict[str, Callable[[str], object]] = {
    "joint.json": JointPlan.load,
    "groups": lambda path: read_calls(path, preset("ring:2"), None, "1M"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_named_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    """Opening it would wait for a writer."""
    pipe = tmp_path / name
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=f"{name}.*: a named pipe, not a file .*copy its content"):
        READERS[name](str(pipe))
