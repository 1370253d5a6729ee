"""Which of torch's NCCL engines is made, and that it is said which one ran."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from topoplan.cli.running.rows import Run, print_run, write_json
from topoplan.runtime.measuring.bench_options import BenchOptions
from topoplan.runtime.ranks.groups import describe_place, is_torch_at_least, make_nccl

has_engines = pytest.mark.skipif(
    not is_torch_at_least(2, 15), reason="torch has several NCCL engines from 2.15 on"
)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the stand-in for torch's creators of NCCL engines was given last, and for which
    engine.
    """
    seen: dict[str, Any] = {}

    def record(engine: str, place: Any, options: object) -> str:
        group = place.process_group
        seen.update(
            engine=engine,
            store=place.store,
            rank=place.group_rank,
            size=place.group_size,
            options=options,
        )
        seen.update(
            split_from=place.split_from, device=group.bound_device_id if group is not None else None
        )
        return engine

    for engine in ("nccl", "nccl2", "nccl-legacy"):
        entry = SimpleNamespace(
            creator_fn=lambda place, options, engine=engine: record(engine, place, options)
        )
        monkeypatch.setitem(dist.Backend._plugins, engine.upper(), entry)
    return seen


@has_engines
@pytest.mark.parametrize("engine", ["nccl", "nccl2", "nccl-legacy"])
def test_torch_itself_makes_the_engine_that_was_named(engine: str, made: dict[str, Any]) -> None:
    """It is made beside the default group, not split off it, which would need all ranks of that."""
    store, gpu = HashStore(), torch.device("cuda", 1)
    place = describe_place(HashStore(), 1, 4, timedelta(seconds=30), "plain")
    assert make_nccl(place, store, engine, gpu) == engine
    assert made == {
        "engine": engine,
        "store": store,
        "rank": 1,
        "size": 4,
        "options": None,
        "split_from": None,
        "device": gpu,
    }


@has_engines
def test_a_group_of_the_backend_gets_what_nccl_means_to_torch(made: dict[str, Any]) -> None:
    """Its GPU is left to torch, as in init_process_group("nccl")."""
    place = describe_place(HashStore(), 0, 2, timedelta(seconds=30), "plain")
    assert make_nccl(place, HashStore()) == "nccl"
    assert (made["engine"], made["device"], made["split_from"]) == ("nccl", None, None)


@pytest.mark.parametrize(
    ("engine", "says"),
    [("nccl2", " nccl (stock by nccl2),"), ("nccl", " nccl,"), ("gloo", " gloo,")],
)
def test_topo_run_names_the_engine_of_stock(
    engine: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = BenchOptions()
    backend = "gloo" if engine == "gloo" else "nccl"
    run = Run(
        options, options.settings_for(options.collective_over(None, 2)), backend, engine, None, []
    )
    print_run(run)
    assert says in capsys.readouterr().out.splitlines()[0]
    said = write_json([run])
    assert (said["backend"], said["stock_engine"]) == (backend, engine)
