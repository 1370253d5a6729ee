"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

MACHINES = Path(__file__).resolve().parents[2] / "shared" / "machines"


@pytest.fixture
def recorded() -> Callable[[str], Path]:
    """The path of a recorded machine (`nccl_xml/oci/H100-topology.xml`); where it is absent the test skips."""

    def find(name: str) -> Path:
        path = MACHINES / name
        if not path.is_file():
            pytest.skip(f"recorded machine {name} is not here ({MACHINES})")
        return path

    return find
