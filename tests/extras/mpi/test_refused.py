"""What is refused before any message goes over MPI, each in one line; no MPI is needed to see
it.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from launch import run_module
from needs import has_extra

from topoplan.runtime.backend.options import backend_options
from topoplan.runtime.extras.mpi import library
from topoplan.runtime.extras.mpi.channel import MpiRank, check_mpi_ranks
from topoplan.runtime.extras.mpi.launched import join_mpi
from topoplan.runtime.ranks.launchers import LAUNCHERS, find_global_rank, find_launcher
from topoplan.topo.errors import InputError

SET_BY_JOINING = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
CORES = frozenset({0, 1})
MPI_RANKS = [MpiRank(rank, 4, "job", "host", CORES) for rank in range(4)]


@pytest.fixture(autouse=True)
def no_launch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variables of a launcher, and no MPI kept from another test."""
    names = {name for launcher in LAUNCHERS for name in (launcher.rank, launcher.ranks)}
    for name in {*names, "RANK", "WORLD_SIZE"}:
        monkeypatch.delenv(name, raising=False)
    library.load_mpi.cache_clear()
    yield
    library.load_mpi.cache_clear()


def give_mpi(monkeypatch: pytest.MonkeyPatch, **has: Any) -> None:
    """Let an MPI of so many ranks, which says what it is told to, stand in for mpi4py's."""
    mpi = SimpleNamespace(
        THREAD_SINGLE=0,
        THREAD_FUNNELED=1,
        THREAD_SERIALIZED=2,
        THREAD_MULTIPLE=3,
        Query_thread=lambda: 3,
        get_vendor=lambda: ("Open MPI", (4, 1, 4)),
        COMM_WORLD=SimpleNamespace(size=1, rank=0),
    )
    mpi.__dict__.update(has)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
def test_ranks_are_known_by_their_launchers_variables(
    launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_launcher() is None
    assert join_mpi() is False
    monkeypatch.setenv(launcher.rank, "3")
    assert find_launcher() is None  # as in a batch script of Slurm, which is no task of a step
    monkeypatch.setenv(launcher.ranks, "8")
    assert find_launcher() == launcher
    assert find_global_rank() == 3
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert find_launcher() is None  # torchrun's are the nearer ones
    assert find_global_rank() == 5


def test_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(
        InputError, match=r"^transport mpi: .*mpi4py.*pip install 'topoplan\[mpi\]'$"
    ):
        library.load_mpi()


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_an_mpich_under_another_name(plans: Callable[..., str]) -> None:
    with suppress(OSError):
        ctypes.CDLL("libmpi.so.12")
        pytest.skip("MPICH is there under the name that mpi4py looks for")
    done = run_module(
        "topoplan.cli.run",
        plans("ring:2"),
        env={"MPI4PY_MPIABI": "mpich", "PMI_RANK": "0", "PMI_SIZE": "1"},
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "libmpi.so.12: cannot open" in line
    assert "Debian calls it libmpich.so.12" in line


@pytest.mark.parametrize(("level", "name"), [(0, "SINGLE"), (1, "FUNNELED")])
def test_an_mpi_that_threads_may_not_use(
    level: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_mpi(monkeypatch, Query_thread=lambda: level)
    with pytest.raises(InputError, match=f"MPI_THREAD_{name}, but calls come from several threads"):
        library.load_mpi()


def test_another_mpi_than_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    give_mpi(monkeypatch)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(
        InputError, match=r"MPICH started 4 ranks, but mpi4py, .* Open MPI 4\.1\.4, sees 1"
    ):
        join_mpi()


def test_ranks_of_several_hosts_meet_where_the_others_reach_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not at the loopback, which is often what a host's own name stands for."""
    on_host = SimpleNamespace(size=1, rank=0, Free=lambda: None)
    world = SimpleNamespace(
        size=2,
        rank=0,
        Split_type=lambda kind, key: on_host,
        gather=lambda own: [own, "127.0.0.9"],
        bcast=lambda x: x,
    )
    give_mpi(monkeypatch, COMM_WORLD=world, COMM_TYPE_SHARED=0, Get_processor_name=lambda: "here")
    for name in (*SET_BY_JOINING, "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    assert join_mpi()
    told = [os.environ[name] for name in SET_BY_JOINING]
    assert told[:5] == ["0", "2", "0", "1", "127.0.0.1"]  # the way to 127.0.0.9 begins there
    assert int(told[5]) > 0
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_gloo_that_is_asked_for_is_gloo(plans: Callable[..., str]) -> None:
    env = {"TOPOPLAN_TRANSPORT": "mpi"}
    options = ["--backend", "gloo", "-b", "1K", "-e", "1K", "-n", "1", "--choose", "plan"]
    done = run_module("topoplan.cli.run", plans("ring:2"), *options, "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["backend"] == "gloo"


Change = Callable[[], list[MpiRank]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda: [*MPI_RANKS[:3], MpiRank(3, 1, "job", "host", CORES)],
            "rank 3 is in an MPI world of 1, and the group has 4",
        ),
        (
            lambda: [*MPI_RANKS[:3], MpiRank(3, 4, "other", "host", CORES)],
            "ranks 0 and 3 were started by two mpirun",
        ),
        (lambda: [*MPI_RANKS[:3], MPI_RANKS[0]], "two ranks of the group are the same rank of MPI"),
    ],
)
def test_ranks_that_are_not_of_one_world(change: Change, said: str) -> None:
    check_mpi_ranks(MPI_RANKS)
    with pytest.raises(InputError, match=said):
        check_mpi_ranks(change())


def test_topo_run_says_how_ranks_are_started_by_mpi(plans: Callable[..., str]) -> None:
    path = plans("ring:2")
    done = run_module("topoplan.cli.run", path, "--backend", "mpi")
    assert done.returncode == 2
    assert (
        f"over MPI ranks have to be started by mpirun: mpirun -n 2 topo-run {path} --backend mpi"
        in done.stderr
    )
    done = run_module("topoplan.cli.run", path, env={"TOPOPLAN_TRANSPORT": "pigeons"})
    assert done.returncode == 2
    assert "TOPOPLAN_TRANSPORT='pigeons': expected one of auto, mpi" in done.stderr


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("on_fault", "MPI ends the job when a connection"),
        ("on_slow", "links are measured over gloo's connections"),
    ],
)
def test_a_group_over_mpi_neither_goes_on_nor_follows_links(option: str, why: str) -> None:
    if not has_extra("recovery" if option == "on_fault" else "slow-links"):
        pytest.skip("the extra is not here")
    given: dict[str, Any] = {option: "replan"}
    with pytest.raises(InputError, match=f"{option}='replan' excludes mpi: {why}"):
        backend_options(transport="mpi", **given)
