"""The public names with their signatures, and the schemas of files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from goldens.signatures import list_signatures

_SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def record() -> dict[str, Any]:
    """Return the signature of each public name and member, and each schema's fields."""
    signatures = list_signatures()
    schemas: dict[str, str] = _load("write_schemas").texts()
    return {**signatures, **{name: json.loads(text) for name, text in schemas.items()}}


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, _SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
