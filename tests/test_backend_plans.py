"""Where the backend "topo" has its plans from: files, folders, a topology, the machine at hand; and what cannot be used."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore

import topoplan.runtime.backend.plan_cache as plan_cache
import topoplan.runtime.ranks.store as letters
from topoplan.runtime.backend.options import backend_options
from topoplan.runtime.backend.plan_cache import cached_plan
from topoplan.runtime.backend.plan_files import PlanFiles
from topoplan.runtime.ranks.places import restrict
from topoplan.synth.ir.collective import Collective
from topoplan.synth.plan import Plan
from topoplan.synth.synthesize import synthesize
from topoplan.topo.errors import InputError, PlanMismatchError, VerificationError
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset

RunRanks = Callable[..., list[str]]
ALLREDUCE = Collective("allreduce", 4)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return synthesize(ALLREDUCE, preset("ring:4"), time_limit_s=20).plan


def test_a_plan_is_kept_used_again_and_replaced_when_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    made = cached_plan(ALLREDUCE, preset("ring:4"), folder, 20)
    (file,) = folder.iterdir()
    kept = file.read_text(encoding="utf-8")
    with monkeypatch.context() as changed:
        changed.setattr(plan_cache, "synthesize", None)
        assert cached_plan(ALLREDUCE, preset("ring:4"), folder, 20).hash == made.hash
    for damaged in (kept[: len(kept) // 2], "", kept.replace('"ranks": 4', '"ranks": 5', 1), "[]"):
        file.write_text(damaged, encoding="utf-8")
        with caplog.at_level(logging.WARNING):
            assert cached_plan(ALLREDUCE, preset("ring:4"), folder, 20).collective == ALLREDUCE
        assert str(file) in caplog.messages[-1]
        caplog.clear()
        assert Plan.load(file).collective == ALLREDUCE
    assert [x.name for x in folder.iterdir()] == [file.name]


def test_plans_of_like_machines_are_not_mixed_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Alike but for the order of ranks: one fingerprint, two plans; nor is a file believed for its name."""
    ring = preset("ring:4")
    gpus = {d.id: d for d in ring.devices}
    crossed = replace(ring, devices=tuple(gpus[ring.ranks[i]] for i in (0, 2, 1, 3)))
    assert crossed.fingerprint == ring.fingerprint
    first = cached_plan(ALLREDUCE, ring, tmp_path, 20)
    (mine,) = tmp_path.iterdir()
    second = cached_plan(ALLREDUCE, crossed, tmp_path, 20)
    assert first.topology.ranks == ring.ranks and second.topology.ranks == crossed.ranks
    (other,) = set(tmp_path.iterdir()) - {mine}
    other.write_text(mine.read_text(encoding="utf-8"), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert cached_plan(ALLREDUCE, crossed, tmp_path, 20).hash == second.hash
    assert "another machine" in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert cached_plan(ALLREDUCE, preset("ring:4"), tmp_path / "file", 20).collective == ALLREDUCE
    assert "not kept" in caplog.text


def test_plans_are_picked_by_collective_ranks_and_root(tmp_path: Path, plan: Plan) -> None:
    plan.save(tmp_path / "four.json")
    for root in (0, 3):
        made = synthesize(Collective("broadcast", 4, root), preset("ring:4"), time_limit_s=20)
        made.plan.save(tmp_path / f"broadcast{root}.json")
    (tmp_path / "ring.json").write_text(preset("ring:4").dumps(), encoding="utf-8")
    files = PlanFiles([tmp_path])
    assert files.find(ALLREDUCE, strict=True) == plan
    found = files.find(Collective("broadcast", 4, 3), strict=True)
    assert found is not None and found.collective.root == 3
    assert files.find(Collective("broadcast", 4, 1), strict=True) is None
    assert files.find(Collective("allgather", 4), strict=True) is None
    assert files.find(Collective("allreduce", 8), strict=False) is None
    with pytest.raises(PlanMismatchError, match=r"for 4 ranks, the group has 8"):
        files.find(Collective("allreduce", 8), strict=True)
    plan.save(tmp_path / "twin.json")
    with pytest.raises(InputError, match=r"2 plans for allreduce over 4 ranks .*four.json.*twin.json"):
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
        text.replace('"step": 0', '"step": 1').replace('"min_bytes": 0', '"min_bytes": 1'), encoding="utf-8"
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
    monkeypatch.setattr(letters, "PART_BYTES", 1000)
    store, value = HashStore(), {"plan": "".join(map(chr, range(32, 9000))), "none": None}
    letters.put(store, "key", value)
    assert letters.take(store, "key", timedelta(seconds=5)) == value
    assert all(len(store.get(f"key/{number}")) <= 1000 for number in range(int(store.get("key"))))
    with pytest.raises(RuntimeError):
        letters.take(store, "other", timedelta(milliseconds=10))


def test_options_come_from_arguments_then_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PLANS", "CHOOSE", "TIME_LIMIT", "CACHE", "LEAST_BYTES", "COMPRESS"):
        monkeypatch.delenv(f"TOPOPLAN_{name}", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain = backend_options()
    assert (plain.plans, plain.choose, plain.compress, plain.cache) == ("auto", "race", None, tmp_path / "topoplan")
    monkeypatch.setenv("TOPOPLAN_PLANS", "dgx1")
    monkeypatch.setenv("TOPOPLAN_CHOOSE", "model")
    monkeypatch.setenv("TOPOPLAN_TIME_LIMIT", "3.5")
    monkeypatch.setenv("TOPOPLAN_COMPRESS", "int8")
    told = backend_options(choose="plan")
    assert (told.plans, told.choose, told.time_limit_s, told.compress) == ("dgx1", "plan", 3.5, "int8")
    monkeypatch.setenv("TOPOPLAN_TIME_LIMIT", "soon")
    with pytest.raises(InputError, match="TOPOPLAN_TIME_LIMIT='soon'"):
        backend_options()
    for wrong in ({"choose": "best"}, {"time_limit_s": 0.0}, {"least_bytes": -1}, {"compress": "zip"}):
        with pytest.raises(InputError):
            backend_options(**{"time_limit_s": 1.0, **wrong})  # type: ignore[arg-type]


HEAD = """
import logging
dist.barrier()
dist.destroy_process_group()
import topoplan.runtime.register
import topoplan.runtime.backend.plan_cache as plan_cache
from pathlib import Path
from topoplan.runtime.backend.options import backend_options
said = []
class Listener(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("topoplan").addHandler(Listener())
logging.getLogger("topoplan").setLevel(logging.INFO)
def start(number=[0], timeout=60, **options):
    number[0] += 1
    said.clear()
    dist.init_process_group("topo", init_method=f"file://{FILE}-{number[0]}", rank=RANK, world_size=WORLD,
        timeout=timedelta(seconds=timeout), pg_options=backend_options(**dict(dict(choose="plan"), **options)))
def end():
    dist.barrier()
    dist.destroy_process_group()
def communicator():
    tensor = torch.arange(3000.0) + RANK
    dist.all_reduce(tensor)
    assert torch.equal(tensor, 2 * torch.arange(3000.0) + 1)
    return dist.group.WORLD.communicators["allreduce", None, "cpu"]
def refused(error, words, **options):
    start(**options)
    for _ in range(2):
        try:
            dist.all_reduce(torch.ones(3000))
            raise SystemExit(f"no {error.__name__}")
        except error as raised:
            assert words in str(raised) and "\\n" not in str(raised), raised
    end()
"""


def test_ranks_use_the_machine_at_hand_or_what_was_named_and_all_hear_what_is_wrong(
    run_ranks: RunRanks, tmp_path: Path, plan: Plan
) -> None:
    plan.save(tmp_path / "four.json")
    apart = Topology("apart", preset("ring:2").devices, ())
    (tmp_path / "apart.json").write_text(apart.dumps(), encoding="utf-8")
    (tmp_path / "ring.json").write_text(preset("ring:2").dumps(), encoding="utf-8")
    (tmp_path / "damaged.json").write_text((tmp_path / "four.json").read_text("utf-8")[:3000], encoding="utf-8")
    body = (
        HEAD
        + """
here = Path(ARGS[0])
cache = here / f"cache{RANK}"  # each rank has a disk of its own
start(cache=cache)
first = communicator().plan
assert first.topology.extra["hosts"] and len(first.topology.ranks) == 2
assert not cache.exists() if RANK else len(list(cache.iterdir())) == 1
end()
real, plan_cache.synthesize = plan_cache.synthesize, None
start(cache=cache)
assert communicator().plan.hash == first.hash
end()
plan_cache.synthesize = real
if RANK == 0:
    next(cache.iterdir()).write_text("{")
start(cache=cache)
assert communicator().plan.hash == first.hash
assert RANK or any("replaced" in line for line in said), said
end()

os.environ["TOPOPLAN_EMULATED"] = str(here / "ring.json")
start(cache=cache)
assert communicator().plan.topology.name == "ring:2"
end()
os.environ["TOPOPLAN_EMULATED"] = str(here / "apart.json")
start(cache=cache)
assert communicator() is None
assert RANK or any("without a plan" in line for line in said), said
end()
del os.environ["TOPOPLAN_EMULATED"]

start(plans="ring:2", cache=cache)
assert communicator().plan.topology.name == "ring:2"
end()
start(plans="off")
dist.all_reduce(torch.ones(3000))
assert not dist.group.WORLD.communicators and dist.group.WORLD.planned.plans.off
end()

refused(topoplan.PlanMismatchError, "is for 4 ranks, the group has 2", plans=here / "four.json")
refused(topoplan.PlanMismatchError, "4 GPUs, the group has 2 ranks", plans="ring:4")
refused(topoplan.InputError, "no such file", plans=str(here / "none.json"))
refused(topoplan.InputError, "damaged.json", plans=here / "damaged.json")
refused(topoplan.InfeasibleError, "", plans=str(here / "apart.json"))
start(plans=here / "four.json")
whole = torch.empty(6000)
dist.all_gather_single(whole, torch.full((3000,), float(RANK)))
assert whole[3000:].eq(1).all()
try:
    dist.all_reduce(torch.ones(3000).to(torch.float8_e5m2))
    raise SystemExit("gloo adds these?")
except RuntimeError as raised:
    assert "scalar type" in str(raised), raised
end()
try:
    dist.init_process_group("topo", init_method=f"file://{FILE}-wrong", rank=RANK, world_size=WORLD, pg_options=object())
    raise SystemExit("took any options")
except topoplan.InputError as raised:
    assert "backend_options" in str(raised)

start(plans="ring:2", cache=cache, timeout=4)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 40))
for _ in range(2):  # the second time DDP exchanges its buckets, by gloo
    model(torch.ones(2, 40)).sum().backward()
if RANK == 1:
    sys.stdout.flush()
    os._exit(0)
try:
    model(torch.ones(2, 40)).sum().backward()
    raise SystemExit("alone, and no error")
except RuntimeError as raised:  # DDP's C++ keeps the words
    assert "ExecutionError: " in str(raised) and "rank 1 does not answer" in str(raised), raised
work = dist.all_reduce(torch.ones(3000), async_op=True)
try:
    work.wait()
    raise SystemExit("went on after a failure")
except topoplan.ExecutionError as raised:
    assert "an earlier call failed" in str(raised) and "rank 1 does not answer" in str(raised), raised
assert work.is_completed() and not work.is_success() and isinstance(work.exception(), topoplan.ExecutionError)
"""
    )
    run_ranks(body, 2, str(tmp_path))
