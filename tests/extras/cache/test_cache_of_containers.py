"""Users of containers: without a cache folder all goes on, with one warning that says what to
set.
"""

from __future__ import annotations

import pytest
from launch import run_ranks
from planned import synthesize
from ranks import containers

from topoplan.synth.cost.host_costs import HostCosts, with_host
from topoplan.synth.ir.collective import collective_on
from topoplan.topo.presets import preset


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A plan whose topology has host costs, so that topo-run need not measure them."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    machine = with_host(preset("ring:2"), HostCosts())
    synthesize(collective_on("allreduce", machine), machine, time_limit_s=20).plan.save(path)
    return str(path)


@pytest.mark.long
def test_a_user_without_a_usable_home_is_one_warning(plan: str) -> None:
    """HOME that this user cannot enter; as root, also a user without HOME and passwd entry."""
    first, others = run_ranks(containers.without_cache, 2, plan)
    assert not any(others)
    begins = ["cache folder /", "no cache folder: no home directory is known"][: len(first)]
    for start, (message,) in zip(begins, first, strict=True):
        assert message.startswith(start)
        assert "set TOPOPLAN_CACHE to a folder that this user can write to" in message
    assert "home0/.cache/topoplan: Permission denied;" in first[0][0]
