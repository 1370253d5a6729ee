"""Collectives through plans, on real processes over gloo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from topoplan.synth.synthesize import collective_on, synthesize

RunRanks = Callable[..., list[str]]


def test_dtypes_operators_shapes_and_lengths(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    """Every reduction and dtype against float64, lengths that do not divide, empty, transposed and strided tensors."""
    body = """
    c = Communicator(ARGS[0])
    def data(rank, dtype, shape):
        g = torch.Generator().manual_seed(rank)
        x = torch.randn(shape, generator=g) if dtype.is_floating_point else torch.randint(1, 4, shape, generator=g)
        return x.to(dtype)
    R = dist.ReduceOp
    floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    for dtype in (*floats, torch.int32, torch.int64, torch.uint8, torch.int8):
        for name, op in dict(sum=R.SUM, avg=R.AVG, prod=R.PRODUCT, max=R.MAX, min=R.MIN).items():
            if name == "avg" and not dtype.is_floating_point:
                continue
            for shape in ((0,), (1,), (3,), (1001,), (7, 11)):
                x = data(RANK, dtype, shape)
                parts = torch.stack([data(r, dtype, shape).double() for r in range(WORLD)])
                want = {"sum": parts.sum(0), "avg": parts.mean(0), "prod": parts.prod(0), "max": parts.amax(0),
                        "min": parts.amin(0)}[name]
                assert c.allreduce(x, op) is x
                eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0
                limit = 8 * eps * parts.abs().sum(0).clamp(min=want.abs()) + (1e-7 if eps else 0)
                assert ((x.double() - want).abs() <= limit).all(), (dtype, name, shape)
    base = data(RANK, torch.float32, (6, 10))
    want = sum(data(r, torch.float32, (6, 10)).double() for r in range(WORLD))
    from topoplan.runtime.choose import Choice
    planned, stock = Communicator(ARGS[0], choose="plan"), Communicator(ARGS[0])
    own = stock.plan.entries[0].schedule
    stock._chooser.known = lambda size: Choice(None, own, lambda size: None, {})
    for pick in (lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1:3]):
        x = base.clone()
        mask = torch.ones_like(x, dtype=torch.bool); pick(mask)[...] = False
        for by in (planned, planned, planned, stock):  # an address that comes back is worked on in place
            x.copy_(base)
            by.allreduce(pick(x))
            assert torch.allclose(pick(x).double(), pick(want), atol=1e-5)
            assert torch.equal(x[mask], base[mask])
    p = torch.nn.Parameter(data(RANK, torch.float32, (9,)))
    c.allreduce(p)
    want = sum(data(r, torch.float32, (9,)).double() for r in range(WORLD))
    assert p.requires_grad and torch.allclose(p.double(), want, atol=1e-5)
    def refused(call, text):
        try:
            call()
        except topoplan.InputError as error:
            assert text in str(error), error
        else:
            raise AssertionError("accepted")
    refused(lambda: c.allreduce(torch.ones(4, dtype=torch.int64), R.AVG), "AVG of")
    refused(lambda: c.allreduce(torch.ones(4, dtype=torch.bool)), "cannot be reduced")
    refused(lambda: c.allreduce(torch.ones(4), R.BXOR), "not supported")
    refused(lambda: c.allreduce(torch.ones(4, dtype=torch.uint16)), "cannot be reduced")
    refused(lambda: c.allreduce(torch.ones(4, dtype=torch.complex64)), "cannot be reduced")
    refused(lambda: c.allreduce(torch.ones(1).expand(8)), "share memory")
    refused(lambda: c.allreduce(torch.ones(4).to_sparse()), "expected a dense one")
    refused(lambda: c.allreduce(torch.ones(4, device="meta")), "the tensor is on meta")
    refused(lambda: c.broadcast(torch.ones(4)), "the plan is for allreduce")
    big = torch.full((300000,), float(RANK + 1))
    c.allreduce(big)
    assert (big == WORLD * (WORLD + 1) / 2).all()
    """
    run_ranks(body, 4, plans("ring:4"))


@pytest.mark.parametrize("topology", ["path:3", "switch:3"])
def test_all_ranks_end_with_the_same_bits(run_ranks: RunRanks, plans: Callable[..., str], topology: str) -> None:
    body = """
    c = Communicator(ARGS[0])
    for numel in (5, 999, 70000):
        x = torch.randn(numel, generator=torch.Generator().manual_seed(RANK)).half()
        c.allreduce(x)
        other = [torch.empty_like(x) for _ in range(WORLD)]
        dist.all_gather(other, x)
        assert all(torch.equal(x, y) for y in other)
    """
    run_ranks(body, 3, plans(topology))


def test_the_other_collectives(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    body = """
    comm = {name: Communicator(path) for name, path in zip(ARGS[::2], ARGS[1::2])}
    def data(rank, numel):
        return torch.arange(numel, dtype=torch.float32) + 1000 * rank
    for part in (1, 5, 64):
        n = part * WORLD
        mine = slice(RANK * part, (RANK + 1) * part)
        out = torch.zeros(n)
        comm["allgather"].allgather(out, data(RANK, part))
        assert torch.equal(out, torch.cat([data(r, part) for r in range(WORLD)]))
        out = torch.zeros(part)
        given = data(RANK, n)
        comm["reduce-scatter"].reduce_scatter(out, given)
        assert torch.equal(out, sum(data(r, n) for r in range(WORLD))[mine]) and torch.equal(given, data(RANK, n))
        x = data(RANK, n)
        comm["broadcast"].broadcast(x)
        assert torch.equal(x, data(0, n))
        x = data(RANK, n)
        comm["reduce"].reduce(x)
        assert RANK or torch.equal(x, sum(data(r, n) for r in range(WORLD)))
        out = torch.zeros(n) if RANK == 0 else None
        comm["gather"].gather(out, data(RANK, part))
        assert RANK or torch.equal(out, torch.cat([data(r, part) for r in range(WORLD)]))
        out = torch.zeros(part)
        comm["scatter"].scatter(out, data(0, n) if RANK == 0 else None)
        assert torch.equal(out, data(0, n)[mine])
        out = torch.zeros(n)
        comm["alltoall"].alltoall(out, data(RANK, n))
        assert torch.equal(out, torch.cat([data(r, n)[mine] for r in range(WORLD)]))
    try:
        comm["allgather"].allgather(torch.zeros(7), torch.zeros(2))
    except topoplan.InputError as error:
        assert "do not fit together" in str(error)
    else:
        raise AssertionError("accepted")
    """
    names = ["allgather", "reduce-scatter", "broadcast", "reduce", "gather", "scatter", "alltoall"]
    args = [x for name in names for x in (name, plans("path:3", name))]
    run_ranks(body, 3, *args)


def test_ranks_must_agree_on_the_plan_before_anything_moves(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    body = """
    try:
        Communicator(ARGS[1] if RANK == 2 else ARGS[0])
    except topoplan.PlanMismatchError as error:
        print(error)
    """
    said = run_ranks(body, 3, plans("switch:3"), plans("ring:3"))
    assert all("do not hold the same plan: rank 2 and rank 0 differ" in line for line in said)


def test_a_plan_that_one_rank_cannot_read_is_an_error_on_all(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    body = """
    try:
        Communicator("nowhere.json" if RANK == 2 else ARGS[0])
    except topoplan.TopoplanError as error:
        print(error)
    """
    said = run_ranks(body, 3, plans("switch:3"))
    assert "nowhere.json: cannot be read" in said[2]
    assert all("rank 2 could not read its plan" in line for line in said[:2])


def test_the_number_of_ranks_must_be_the_plans(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    body = """
    try:
        Communicator(ARGS[0])
    except topoplan.PlanMismatchError as error:
        print(error)
    """
    said = run_ranks(body, 2, plans("switch:3"))
    assert all("the plan is for 3 ranks, the group has 2" in line for line in said)


def test_a_rank_that_is_gone_is_an_error_that_names_it(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    body = """
    import os, time
    c = Communicator(ARGS[0], timeout=timedelta(seconds=5))
    x = torch.ones(1000)
    c.allreduce(x)
    if RANK == 1:
        os._exit(0)
    started = time.monotonic()
    try:
        for _ in range(100):
            c.allreduce(x)
    except topoplan.ExecutionError as error:
        print(error)
        assert time.monotonic() - started < 30
    os._exit(0)
    """
    said = run_ranks(body, 3, plans("path:3"))
    assert "rank 1 does not answer" in said[0]
    assert "rank 1 does not answer" in said[2]
    assert "link gpu1 -> gpu0" in said[0]


def test_after_the_end_of_the_process_group_a_call_says_so(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    body = """
    c = Communicator(ARGS[0], choose="model")
    x = torch.ones(100)
    c.allreduce(x)
    dist.destroy_process_group()
    for y in (x, torch.ones(10_000)):  # one of a size that was used before, one that was not
        try:
            c.allreduce(y)
        except topoplan.ExecutionError as error:
            assert "the process group was destroyed" in str(error)
        else:
            raise AssertionError("went on")
    os._exit(0)
    """
    run_ranks(body, 2, plans("ring:2"))


def test_a_loaded_plan_allocates_nothing_per_call(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    """Counted: tensors made by torch whose memory is neither an argument's nor the caller's."""
    body = """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    class Count(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.made, self.calls = [], 0
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            self.calls += 1
            given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
            self.made += [str(func) for t in tree_leaves(out)
                          if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in given]
            return out
    with Count() as count:
        torch.empty(3)
    assert count.made  # it does count
    for choose in ("plan", "model", "race"):
        c = Communicator(ARGS[0], choose=choose)
        for numel in (300, 100_000, 1_000_000):
            x = torch.ones(numel)
            for _ in range(3):
                c.allreduce(x)
            with Count() as count:
                for _ in range(3):
                    c.allreduce(x)
            assert not count.made, (choose, numel, count.made)
    assert count.calls
    """
    run_ranks(body, 4, plans("mesh:2x2"))


def test_tensors_at_ever_new_addresses_and_freed_ones_are_right(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    """Views on the caller's memory are kept by address: another tensor there, or the same one elsewhere, is no surprise."""
    body = """
    c = Communicator(ARGS[0], choose="plan")
    kept = []
    for turn in range(40):
        x = torch.full((20_000 + turn % 3,), float(RANK + turn))
        c.allreduce(x)
        assert (x == sum(r + turn for r in range(WORLD))).all()
        if turn % 4 == 0:
            kept.append(x)
    """
    run_ranks(body, 4, plans("mesh:2x2"))


def test_choices_are_alike_on_all_ranks_and_keep_what_the_caller_brought(
    run_ranks: RunRanks, plans: Callable[..., str]
) -> None:
    body = """
    for choose in ("race", "model"):
        c = Communicator(ARGS[0], choose=choose)
        assert c.choice(4096) is None
        for numel in (1024, 60_000, 400_000):
            x = torch.full((numel,), float(RANK))
            c.allreduce(x)
            assert (x == WORLD * (WORLD - 1) / 2).all()
            choice = c.choice(numel * 4)
            print(choose, numel, choice.label, "stock" in choice.raced, len(choice.raced))
    try:
        Communicator(ARGS[0], choose="fastest")
    except topoplan.InputError as error:
        assert "expected one of race, model, plan" in str(error)
    else:
        raise AssertionError("accepted")
    """
    said = run_ranks(body, 4, plans("full:4"))
    assert len(set(said)) == 1
    lines = [line.split() for line in said[0].splitlines()]
    assert all(line[-2] == "True" and int(line[-1]) >= 2 for line in lines if line[0] == "race")
    assert all(line[-1] == "0" for line in lines if line[0] == "model")


def test_where_stock_wins_stock_is_used(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    """Every schedule is slowed down on every rank: what is left is the stock collective, and it is right."""
    body = """
    import time
    c = Communicator(ARGS[0])
    played = c._executor.run
    def slow(*args):
        time.sleep(0.05)
        played(*args)
    c._executor.run = slow
    for op, want in ((dist.ReduceOp.SUM, 6.0), (dist.ReduceOp.AVG, 1.5)):
        x = torch.full((1000,), float(RANK))
        c.allreduce(x, op)
        assert (x == want).all()
    print(c.choice(4000).label)
    c._executor.run = None
    """
    assert [line.strip() for line in run_ranks(body, 4, plans("full:4"))] == ["stock"] * 4


def test_host_costs_are_fitted_and_used(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    body = """
    from topoplan.runtime.measuring.calibrate import calibrate
    c = Communicator(ARGS[0])
    before = c.machine.host
    host = calibrate(c)
    assert host == c.machine.host != before
    assert host.source == "topo-run --calibrate" and host.cores == before.cores
    assert c.machine.topology is None and c.machine.what == "one host's memory"
    x = torch.ones(1000)
    c.allreduce(x)
    print(host)
    """
    assert len(set(run_ranks(body, 4, plans("full:4")))) == 1


def test_plans_of_recorded_machines_run(run_ranks: RunRanks, recorded: Callable[[str], Path], tmp_path: Path) -> None:
    """The 4-GPU bridged machine, all collectives' worth of it being allreduce: from its file to right results."""
    from topoplan.topo.resolve import resolve

    topology = resolve(str(recorded("nccl_xml/azure/ncv4-topo.xml")))
    path = tmp_path / "plan.json"
    synthesize(collective_on("allreduce", topology), topology, "auto", 20).plan.save(path)
    body = """
    c = Communicator(ARGS[0])
    for numel in (10, 5000, 200001):
        x = torch.full((numel,), float(RANK))
        c.allreduce(x)
        assert (x == 6).all()
    """
    run_ranks(body, 4, str(path))


@pytest.mark.gpu
def test_nccl_with_several_ranks_on_one_gpu(plans: Callable[..., str]) -> None:
    """NCCL takes ranks with distinct NCCL_HOSTID for different hosts, and then lets them share a GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    import json
    import os
    import subprocess
    import sys
    import tempfile

    path = plans("ring:4")
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(4):
            environment = {
                **os.environ, "RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4",
                "TOPOPLAN_RENDEZVOUS": f"{folder}/rendezvous", "NCCL_HOSTID": f"r{rank}", "NCCL_SOCKET_IFNAME": "lo",
                "NCCL_IB_DISABLE": "1",
            }  # fmt: skip
            command = [
                sys.executable,
                "-m",
                "topoplan.cli.run",
                path,
                "--backend",
                "nccl",
                "--json",
                "-n",
                "2",
                "-w",
                "1",
            ]
            ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        said = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4
    assert all(row["wrong"] == 0 for row in json.loads(said[0])["rows"])
