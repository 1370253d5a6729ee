"""What the doctor and GPUDirect say of topologies; without these extras, tests that ask skip."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from topoplan.topo.extras.doctor import Finding
    from topoplan.topo.extras.gpudirect import Verdict
    from topoplan.topo.graph import Topology


def list_findings(topology: Topology) -> tuple[Finding, ...]:
    doctor = pytest.importorskip("topoplan.topo.extras.doctor", reason="needs the extra doctor")
    found: tuple[Finding, ...] = doctor.list_findings(topology)
    return found


def judge_pairs(topology: Topology) -> tuple[Verdict, ...]:
    gpudirect = pytest.importorskip(
        "topoplan.topo.extras.gpudirect", reason="needs the extra gpudirect"
    )
    judged: tuple[Verdict, ...] = gpudirect.judge_pairs(topology)
    return judged
