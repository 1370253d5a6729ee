"""Other memberships of the default group: after an abort, without dead ranks, with new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from launch import run_ranks
from needs import has_extra, long_cases
from ranks import reconfigured
from torch._C._distributed_c10d import HashStore

import topoplan
from topoplan.runtime.backend.process_group import TopoGroup
from topoplan.runtime.register import register
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.presets import preset

# Nothing may take longer than this from a rank's death to the first sum of the rest.
MAX_SECONDS = 10


ON_FAULTS = ["raise", *(["replan"] if has_extra("recovery") else [])]


@pytest.mark.parametrize("on_fault", long_cases(ON_FAULTS, ON_FAULTS[-1]))
def test_a_group_is_made_anew_after_an_abort(plans: Callable[..., str], on_fault: str) -> None:
    """Ranks get the numbers of their handles, and a call in flight fails and says why."""
    run_ranks(reconfigured.after_an_abort, 3, plans("full:3"), on_fault)


@pytest.mark.parametrize(
    ("dead", "on_fault"),
    [
        pytest.param(0, "raise", marks=pytest.mark.long),
        pytest.param(1, "raise", marks=pytest.mark.long),
        (1, ON_FAULTS[-1]),
        pytest.param(2, "raise", marks=pytest.mark.long),
    ],
)
def test_the_rest_goes_on_without_a_rank(dead: int, on_fault: str, tmp_path: Path) -> None:
    """The first rank, which hosts the store, the middle and the last: a spare plan is used if there
    is one for these GPUs, else one is synthesized for what is left of the named machine.
    """
    for number, lost in enumerate((None, 1)):
        machine = preset("full:3")
        left = machine if lost is None else degrade(machine, Change(without_ranks=(lost,)))
        plan = topoplan.synthesize("allreduce", left)
        plan.save(tmp_path / f"{number}.json")
    results = run_ranks(reconfigured.without_a_rank, 3, dead, str(tmp_path), on_fault)
    gpus = " ".join(f"gpu{rank}" for rank in range(3) if rank != dead)
    for rank, result in enumerate(results):
        if rank == dead:
            assert result is None
        else:
            assert result is not None
            seconds, used = result
            assert seconds < MAX_SECONDS
            assert used == gpus


def test_a_process_joins() -> None:
    """It has been alone, and gets the number of its handle; a plan for all four is synthesized."""
    (used,) = set(run_ranks(reconfigured.with_a_rank_more, 4, "auto"))
    assert used is not None and len(used.split()) == 4


def test_a_second_failure_is_one_error(plans: Callable[..., str]) -> None:
    run_ranks(reconfigured.a_second_failure, 3, plans("full:3"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[TopoGroup]:
    """Return the default group of this process alone."""
    register()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("topo", store=HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert isinstance(group, TopoGroup)
    yield group
    dist.destroy_process_group()


def test_wrong_lists_are_one_line_and_leave_the_group_as_it_is(world: TopoGroup) -> None:
    own = topoplan.reconfigure_handle()
    other = f"{own[:-1]}{'0' if own[-1] != '0' else '1'}"  # the same process, another rank
    plain = world.plain
    wrong: list[tuple[Any, str]] = [
        ([own, own], "handles[1]: the same handle as handles[0]"),
        ([other], "this rank's own is not among the 1"),
        ([], "this rank's own is not among the 0"),
        ([own, "garbage"], "handles[1]='garbage': expected a text that reconfigure_handle()"),
        ([own, None], "handles[1]=None: expected"),
        (own, "expected a list of handles"),
    ]
    for handles, text in wrong:
        with pytest.raises(topoplan.InputError) as error:
            topoplan.reconfigure(handles)
        assert text in str(error.value) and "\n" not in str(error.value)
    assert world.plain is plain
    with pytest.raises(topoplan.ExecutionError, match=r"rank 1 did not come within 0\.3 s"):
        topoplan.reconfigure([own, other], timedelta(seconds=0.3))
    topoplan.reconfigure([own])
    x = torch.ones(4)
    dist.all_reduce(x)
    assert (x == 1).all()


def test_a_rank_that_has_ended_is_named(world: TopoGroup) -> None:
    """Neither the first rank, which is to host the store, nor another is waited for."""
    own = topoplan.reconfigure_handle()
    prefix, host, _, _, nonce = own.split("/")
    gone = f"{prefix}/{host}/9/9/{nonce[::-1]}"  # port 9: nothing listens
    for handles in ([own, gone], [gone, own]):
        place = handles.index(gone)
        with pytest.raises(
            topoplan.ExecutionError, match=rf"handles\[{place}\]: the process has ended"
        ):
            topoplan.reconfigure(handles, timedelta(seconds=20))
    topoplan.reconfigure([own])


def test_without_a_group_of_the_backend_it_says_what_to_do() -> None:
    for call in (topoplan.reconfigure_handle, lambda: topoplan.reconfigure([])):
        with pytest.raises(topoplan.InputError, match="there is no process group"):
            call()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    with pytest.raises(topoplan.InputError, match="backend is gloo; expected topo"):
        topoplan.reconfigure_handle()
    dist.destroy_process_group()


def test_torch_s_contract_has_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that torch may reconfigure has no members at first, and takes no uuid twice."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    place = SimpleNamespace(
        store=HashStore(),
        group_rank=0,
        group_size=1,
        timeout=timedelta(seconds=20),
        group_id="torch",
        global_ranks_in_group=[],
        enable_reconfigure=True,
    )
    group = TopoGroup(place, None)
    assert group.supports_reconfigure
    x = torch.ones(4)
    with pytest.raises(topoplan.ExecutionError, match="has no members yet"):
        group.allreduce([x])
    options = SimpleNamespace(uuid=7, handles={group.get_reconfigure_handle()}, timeout=None)
    group.reconfigure(options).wait()
    group.allreduce([x]).wait()
    assert group.size() == 1 and (x == 1).all()
    with pytest.raises(topoplan.InputError, match="uuid 7 was already used"):
        group.reconfigure(options)
    called: list[int] = []
    group.register_abort_hook(1, lambda: called.append(1))
    group.abort()
    group.abort()
    assert called == [1]
    assert group._get_backend(torch.device("cpu")) is group
    group.shutdown()
