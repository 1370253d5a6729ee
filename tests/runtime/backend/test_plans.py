"""Where the backend "topo" has its plans from: files, folders, a topology, the machine at hand; and
what cannot be used.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import patience
import pytest
from launch import run_ranks
from needs import has_extra
from patience import PLANNING_S
from planned import synthesize
from ranks import backend_plans
from torch._C._distributed_c10d import HashStore

import topoplan.runtime.ranks.store as store_values
from topoplan.runtime.backend import plan_finder
from topoplan.runtime.backend.options import backend_options
from topoplan.runtime.backend.plan_files import PlanFiles
from topoplan.runtime.ranks.rank_locations import restrict
from topoplan.synth.ir.collective import Collective
from topoplan.synth.plan import Plan
from topoplan.topo.errors import InputError, PlanMismatchError, VerificationError
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset

ALLREDUCE = Collective("allreduce", 4)
ALLGATHER = Collective("allgather", 4)  # plans for it are made sooner


@pytest.fixture(scope="module")
def plan() -> Plan:
    return synthesize(ALLREDUCE, preset("switch:4"), time_limit_s=PLANNING_S).plan


@pytest.mark.parametrize("is_first", [True, False])
def test_a_long_wait_for_a_plan_is_one_line_and_ends_by_the_clock(
    is_first: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_finder, "LONG_WAIT_S", 0.0)
    asked, looks = threading.Event(), list[None]()

    def search(is_over: Callable[[], bool]) -> None:
        assert not is_over()  # calls go on without the plan, and none waits
        asked.set()
        # The line is printed after the first look for errors, however late that is.
        patience.wait_until(lambda: is_over() and len(looks) > 1, "the end of the wait")

    def find_error() -> None:
        looks.append(None)

    searching = plan_finder.Preparation(search, "allreduce", 0.3, is_first=is_first)
    asked.wait()
    with caplog.at_level(logging.WARNING):
        assert searching.wait(find_error) is None
    said = ["waiting for the plan of allreduce, at most 0 s more"] if is_first else []
    assert caplog.messages == said


def test_plans_are_picked_by_collective_ranks_and_root(tmp_path: Path, plan: Plan) -> None:
    plan.save(tmp_path / "four.json")
    for root in (0, 3):
        broadcast = synthesize(
            Collective("broadcast", 4, root), preset("ring:4"), time_limit_s=PLANNING_S
        )
        broadcast.plan.save(tmp_path / f"broadcast{root}.json")
    (tmp_path / "ring.json").write_text(preset("ring:4").dumps(), encoding="utf-8")
    files = PlanFiles([tmp_path])
    assert files.find(ALLREDUCE, strict=True) == plan
    broadcast_3 = files.find(Collective("broadcast", 4, 3), strict=True)
    assert broadcast_3 is not None
    assert broadcast_3.collective.root == 3
    assert files.find(Collective("broadcast", 4, 1), strict=True) is None
    assert files.find(Collective("allgather", 4), strict=True) is None
    assert files.find(Collective("allreduce", 8), strict=False) is None
    with pytest.raises(PlanMismatchError, match=r"for 4 ranks, the group has 8"):
        files.find(Collective("allreduce", 8), strict=True)
    plan.save(tmp_path / "twin.json")
    with pytest.raises(
        InputError, match=r"2 plans for allreduce over 4 ranks .*four.json.*twin.json"
    ):
        PlanFiles([tmp_path]).find(ALLREDUCE, strict=True)


def test_bad_plan_files_give_one_line(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none.json", tmp_path / "empty"):
        with pytest.raises(InputError, match=str(path)):
            PlanFiles([path])
    text = json.dumps(plan.to_json())
    file = tmp_path / "plan.json"
    for damaged in (text[:200], "[]", '{"collective": "allreduce"}', "[" * 100_000):
        file.write_text(damaged, encoding="utf-8")
        with pytest.raises(InputError, match=r"plan\.json"):
            PlanFiles([file])
    file.write_text(
        text.replace('"step": 0', '"step": 1').replace('"min_bytes": 0', '"min_bytes": 1'),
        encoding="utf-8",
    )
    with pytest.raises(VerificationError, match=r"plan\.json"):
        PlanFiles([file]).find(ALLREDUCE, strict=True)


def test_a_machine_restricted_to_ranks_has_their_gpus_in_their_order() -> None:
    machine = preset("dgx1")
    part = restrict(machine, [5, 2])
    assert part.ranks == (machine.ranks[5], machine.ranks[2])
    assert restrict(machine, range(8)) == machine
    with pytest.raises(InputError, match="none for rank 8"):
        restrict(machine, [7, 8])


def test_long_values_go_through_a_store_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCPStore drops its clients at 8 MiB; a plan for a large machine is longer."""
    monkeypatch.setattr(store_values, "PART_BYTES", 1000)
    store, value = HashStore(), {"plan": "".join(map(chr, range(32, 9000))), "none": None}
    store_values.put(store, "key", value)
    assert store_values.take(store, "key", timedelta(seconds=5)) == value
    assert all(len(store.get(f"key/{number}")) <= 1000 for number in range(int(store.get("key"))))
    with pytest.raises(RuntimeError):
        store_values.take(store, "other", timedelta(milliseconds=10))


def test_options_come_from_arguments_then_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PLANS", "CHOOSE", "TIME_LIMIT", "CACHE", "LEAST_BYTES", "COMPRESS"):
        monkeypatch.delenv(f"TOPOPLAN_{name}", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain = backend_options()
    assert (plain.plans, plain.policy.choose, plain.policy.compress, plain.policy.cache_folder) == (
        "auto",
        "race",
        None,
        tmp_path / "topoplan",
    )
    monkeypatch.setenv("TOPOPLAN_PLANS", "dgx1")
    monkeypatch.setenv("TOPOPLAN_CHOOSE", "model")
    monkeypatch.setenv("TOPOPLAN_TIME_LIMIT", "3.5")
    codec = "int8" if has_extra("codecs") else None
    monkeypatch.setenv("TOPOPLAN_COMPRESS", codec or "")
    options = backend_options(choose="plan")
    policy = options.policy
    assert (options.plans, policy.choose, policy.time_limit_s, policy.compress) == (
        "dgx1",
        "plan",
        3.5,
        codec,
    )
    monkeypatch.setenv("TOPOPLAN_TIME_LIMIT", "soon")
    with pytest.raises(InputError, match="TOPOPLAN_TIME_LIMIT='soon'"):
        backend_options()
    for wrong in (
        {"choose": "best"},
        {"time_limit_s": 0.0},
        {"least_bytes": -1},
        {"compress": "zip"},
    ):
        with pytest.raises(InputError):
            backend_options(**{"time_limit_s": 1.0, **wrong})  # type: ignore[arg-type]


def test_ranks_use_the_machine_at_hand_or_what_was_named_and_all_hear_what_is_wrong(
    tmp_path: Path, plan: Plan
) -> None:
    plan.save(tmp_path / "four.json")
    apart = Topology("apart", preset("ring:2").devices, ())
    (tmp_path / "apart.json").write_text(apart.dumps(), encoding="utf-8")
    (tmp_path / "ring.json").write_text(preset("ring:2").dumps(), encoding="utf-8")
    (tmp_path / "damaged.json").write_text(
        (tmp_path / "four.json").read_text("utf-8")[:3000], encoding="utf-8"
    )
    run_ranks(backend_plans.every_source, 2, str(tmp_path))
