"""Where the backend "topo" has its plans from: files, folders, a topology, the machine at hand; and
what cannot be used.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import patience
import pytest
from launch import run_ranks
from needs import has_extra
from patience import PLANNING_S
from ranks import backend_plans
from torch._C._distributed_c10d import HashStore

import topoplan.runtime.ranks.store as store_values
import topoplan.synth.planner.synthesize as planner
from topoplan.runtime import cache
from topoplan.runtime.backend import plan_finder
from topoplan.runtime.backend.options import backend_options
from topoplan.runtime.backend.plan_files import PlanFiles, load_or_synthesize
from topoplan.runtime.ranks.places import restrict
from topoplan.synth.demands.demands import Demand, Demands
from topoplan.synth.ir.collective import Collective
from topoplan.synth.plan import Plan
from topoplan.synth.planner.synthesize import synthesize
from topoplan.topo.errors import InputError, PlanMismatchError, VerificationError
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset

ALLREDUCE = Collective("allreduce", 4)
ALLGATHER = Collective("allgather", 4)  # plans for it are made sooner


@pytest.fixture(scope="module")
def plan() -> Plan:
    return synthesize(ALLREDUCE, preset("switch:4"), time_limit_s=PLANNING_S).plan


@pytest.mark.long
def test_a_plan_is_cached_used_again_and_replaced_when_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    plan = load_or_synthesize(ALLGATHER, preset("switch:4"), folder, PLANNING_S)
    (file,) = folder.iterdir()
    text = file.read_text(encoding="utf-8")
    with monkeypatch.context() as changed:
        changed.setattr(planner, "synthesize", None)
        assert (
            load_or_synthesize(ALLGATHER, preset("switch:4"), folder, PLANNING_S).hash == plan.hash
        )
    for damaged in (text[: len(text) // 2], "", text.replace('"ranks": 4', '"ranks": 5', 1), "[]"):
        file.write_text(damaged, encoding="utf-8")
        with caplog.at_level(logging.WARNING):
            assert (
                load_or_synthesize(ALLGATHER, preset("switch:4"), folder, PLANNING_S).collective
                == ALLGATHER
            )
        assert str(file) in caplog.messages[-1]
        caplog.clear()
        assert Plan.load(file).collective == ALLGATHER
    assert [x.name for x in folder.iterdir()] == [file.name]


def test_plans_of_like_machines_are_not_mixed_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Alike but for the order of ranks: one fingerprint, two plans; nor is a file believed for its
    name.
    """
    ring = preset("ring:4")
    gpus = {d.id: d for d in ring.devices}
    crossed = replace(ring, devices=tuple(gpus[ring.ranks[i]] for i in (0, 2, 1, 3)))
    assert crossed.fingerprint == ring.fingerprint
    first = load_or_synthesize(ALLGATHER, ring, tmp_path, PLANNING_S)
    (first_file,) = tmp_path.iterdir()
    second = load_or_synthesize(ALLGATHER, crossed, tmp_path, PLANNING_S)
    assert first.topology.ranks == ring.ranks and second.topology.ranks == crossed.ranks
    (second_file,) = set(tmp_path.iterdir()) - {first_file}
    second_file.write_text(first_file.read_text(encoding="utf-8"), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert load_or_synthesize(ALLGATHER, crossed, tmp_path, PLANNING_S).hash == second.hash
    assert "another machine" in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert (
            load_or_synthesize(
                ALLGATHER, preset("switch:4"), tmp_path / "file", PLANNING_S
            ).collective
            == ALLGATHER
        )
    (message,) = caplog.messages
    assert f"cache folder {tmp_path / 'file'}: " in message and "set TOPOPLAN_CACHE" in message


def test_plans_that_are_never_cached_miss_no_folder(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_warned", set())  # it warns once per process
    with caplog.at_level(logging.WARNING):
        for wanted in (ALLGATHER, Demands.of([Demand(8, (0,), (3,))], 4)):
            load_or_synthesize(wanted, preset("ring:4"), None, PLANNING_S)
    (message,) = caplog.messages  # of the allgather
    assert message.startswith("no cache folder: ")


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
