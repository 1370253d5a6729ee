"""Codecs: how far off they are, that rounding twice is rounding once, what they take; and compressed collectives on ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan.runtime.codecs import BLOCK, CODECS, Codec, find_codec
from topoplan.topo.errors import InputError

RunRanks = Callable[..., list[str]]


def there_and_back(codec: Codec, values: torch.Tensor) -> torch.Tensor:
    wire = torch.empty(codec.nbytes(len(values)), dtype=torch.uint8)
    out = torch.empty_like(values)
    codec.encode(values.clone(), wire, torch.empty_like(values))
    codec.decode(wire, out)
    return out


def values(seed: int, blocks: int, exponent: int) -> torch.Tensor:
    """Of widely different sizes, zeros and whole zero blocks among them."""
    g = torch.Generator().manual_seed(seed)
    x = (
        torch.randn(blocks * BLOCK, generator=g)
        * torch.exp(2 * torch.randn(blocks * BLOCK, generator=g))
        * 2.0**exponent
    )
    x[torch.rand(len(x), generator=g) < 0.1] = 0
    x.view(-1, BLOCK)[torch.rand(blocks, generator=g) < 0.1] = 0
    return x


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), blocks=st.integers(1, 40), exponent=st.integers(-90, 90))
def test_errors_are_bounded_and_rounding_is_done_once(codec: Codec, seed: int, blocks: int, exponent: int) -> None:
    x = values(seed, blocks, exponent if codec.name != "fp16" else exponent % 3)
    once = there_and_back(codec, x)
    largest = x.view(-1, codec.block).abs().amax(dim=1, keepdim=True)
    off = (once - x).double().abs().view(-1, codec.block)
    tiny = 2.0**-24 if codec.name == "fp16" else 0.0
    assert (off <= largest.double() * codec.relative_error + tiny).all()
    assert torch.equal(there_and_back(codec, once), once)
    assert torch.equal(there_and_back(codec, -x), -once)


@pytest.mark.parametrize("codec", [c for c in CODECS.values() if c.block > 1], ids=lambda c: c.name)
def test_the_largest_value_of_a_block_uses_the_formats_range(codec: Codec) -> None:
    """The scale is the least power of two that does: at most a factor of two is left unused, and nothing is cut off."""
    top = {"int8": 127.0, "fp8": 448.0, "fp8-e5m2": 57344.0}[codec.name]
    for factor, fits in ((1.0, True), (1 + 2**-20, False), (0.5, True), (2.0**60, True), (2.0**-60, True)):
        x = torch.zeros(BLOCK)
        x[7] = top * factor
        out = there_and_back(codec, x)
        assert (out == x).all() == fits or codec.name != "int8"
        assert abs(out[7] - x[7]) <= codec.relative_error * x[7]
    assert torch.equal(there_and_back(codec, torch.full((BLOCK,), top)), torch.full((BLOCK,), top))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_stays_so_where_it_is(codec: Codec, bad: float) -> None:
    """A gradient scaler looks for it. Other blocks are not touched; tiny and huge numbers stay finite."""
    x = torch.randn(4 * BLOCK, generator=torch.Generator().manual_seed(1))
    clean = there_and_back(codec, x)
    x[BLOCK + 3] = bad
    out = there_and_back(codec, x)
    assert not torch.isfinite(out[BLOCK + 3])
    mine = slice(BLOCK + 3, BLOCK + 4) if codec.block == 1 else slice(BLOCK, 2 * BLOCK)
    rest = torch.ones(4 * BLOCK, dtype=torch.bool)
    rest[mine] = False
    assert torch.equal(out[rest], clean[rest])
    for extreme in (1e-45, 3e38):
        if codec.name != "fp16" or extreme < 1:
            assert torch.isfinite(there_and_back(codec, torch.full((BLOCK,), extreme))).all()


@pytest.mark.parametrize(
    ("name", "part"), [("fp16", 0.5), ("bf16", 0.5), ("fp8", 0.27), ("fp8-e5m2", 0.27), ("int8", 0.27)]
)
def test_bytes_on_the_wire(name: str, part: float) -> None:
    codec = find_codec(name)
    for numel in (1000, 65_537, 10**6):
        padded = codec.padded(numel)
        assert numel <= padded < numel + codec.block
        assert codec.nbytes(padded) <= part * 4 * numel
        assert codec.room(padded) >= codec.nbytes(padded)


@pytest.mark.gpu
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_gpu_encodes_to_the_same_bytes(codec: Codec) -> None:
    """Ranks on GPUs and on CPUs agree, whatever does the casting."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    x = values(7, 4096, 0)
    wires = []
    for device in ("cpu", "cuda"):
        here = x.to(device)
        wire = torch.empty(codec.nbytes(len(x)), dtype=torch.uint8, device=device)
        codec.encode(here.clone(), wire, torch.empty_like(here))
        out = torch.empty_like(here)
        codec.decode(wire, out)
        wires.append((wire.cpu(), out.cpu()))
    assert torch.equal(wires[0][0], wires[1][0]) and torch.equal(wires[0][1], wires[1][1])


def test_unknown_codecs_are_refused() -> None:
    with pytest.raises(InputError, match="compress='zip': expected one of fp16, bf16, fp8"):
        find_codec("zip")


HELPERS = """
    from topoplan.runtime.codecs import CODECS
    def data(rank, numel, dtype=torch.float32):
        return torch.randn(numel, generator=torch.Generator().manual_seed(rank)).to(dtype)
    def same_everywhere(x):
        other = [torch.empty_like(x) for _ in range(WORLD)]
        dist.all_gather(other, x)
        return all(torch.equal(x, y) for y in other)
    def summed(x):
        x = x.double()
        dist.all_reduce(x)
        return x
    def refused(call, text):
        try:
            call()
        except topoplan.InputError as error:
            assert text in str(error), error
        else:
            raise AssertionError("accepted")
"""


def test_compressed_sums_agree_bitwise_and_feedback_loses_nothing(
    run_ranks: RunRanks, plans: Callable[..., str]
) -> None:
    """Every codec, several schedules and lengths: near the sum, the same bits on all ranks, and over all ranks what came out
    and what is kept for the next call is what went in.
    """
    body = (
        HELPERS
        + """
    for path in ARGS:
        for name, codec in CODECS.items():
            c = Communicator(path, choose="model", compress=name)
            for numel in (1, 33, 5000, 70_001):
                x, want = data(RANK, numel), sum(data(r, numel).double() for r in range(WORLD))
                scale = sum(data(r, numel).double().abs() for r in range(WORLD)).max()
                c.allreduce(x)
                assert same_everywhere(x), (path, name, numel)
                assert (x - want).abs().max() <= c.most_roundings * codec.relative_error * scale * 1.1, (path, name, numel)
                kept = data(100 + RANK, numel) * 0.01
                put_in = summed(data(RANK, numel)) + summed(kept)
                x = data(RANK, numel)
                c.allreduce(x, residual=kept)
                assert same_everywhere(x)
                assert (x + summed(kept) - put_in).abs().max() <= 1e-5, (path, name, numel)
                if numel == 70_001:
                    assert summed(kept).abs().sum() > 0
    c = Communicator(ARGS[0], choose="model", compress="int8")
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x = data(RANK, 3000, dtype)
        want = sum(data(r, 3000, dtype).double() for r in range(WORLD)) / WORLD
        c.allreduce(x, dist.ReduceOp.AVG)
        assert same_everywhere(x) and (x.double() - want).abs().max() < 0.15
    x = data(RANK, 64)
    x[5] = float("inf") if RANK == 1 else 0
    c.allreduce(x)
    assert not torch.isfinite(x[5]) and same_everywhere(torch.isfinite(x).int())
    for name in CODECS:  # what is not finite is seen once, and is gone with the next call
        c, kept = Communicator(ARGS[0], choose="model", compress=name), torch.zeros(3000)
        x = data(RANK, 3000)
        x[700 * RANK] = float("inf")
        c.allreduce(x, residual=kept)
        assert not torch.isfinite(x[700 * RANK]) and torch.isfinite(kept).all(), name
        x = data(RANK, 3000)
        c.allreduce(x, residual=kept)
        assert torch.isfinite(x).all(), name
    c = Communicator(ARGS[0], choose="model", compress="int8")
    x = data(RANK, 60).view(6, 10).t()  # not contiguous
    c.allreduce(x)
    assert (x - sum(data(r, 60) for r in range(WORLD)).view(6, 10).t()).abs().max() < 0.3
    refused(lambda: c.allreduce(torch.ones(4, dtype=torch.int32)), "is not compressed")
    refused(lambda: c.allreduce(torch.ones(4), residual=torch.ones(3)), "expected 4 of torch.float32")
    refused(lambda: c.allreduce(torch.ones(4), dist.ReduceOp.MAX, torch.ones(4)), "for sums and averages")
    refused(lambda: Communicator(ARGS[0]).allreduce(torch.ones(4), residual=torch.ones(4)), "without compression")
    refused(lambda: Communicator(ARGS[0], compress="zip"), "expected one of fp16")
    refused(lambda: Communicator(ARGS[0], reduction="once"), "without compress")
    """
    )
    run_ranks(body, 4, plans("ring:4"), plans("switch:4", "allreduce", "recursive-doubling"), plans("path:4"))


def test_bytes_that_are_sent_are_counted_and_fall(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    """Against the plan's own figures: a direct schedule sends 2 (n - 1) / n of the buffer a rank, exactly."""
    body = (
        HELPERS
        + """
    numel = 4 * 25_600
    def sent(compress):
        c = Communicator(ARGS[0], choose="plan", compress=compress)
        c.allreduce(data(RANK, numel))
        return c.wire_bytes
    whole = sent(None)
    assert whole == 2 * (WORLD - 1) * numel // WORLD * 4, whole
    assert sent("fp16") * 2 == whole and sent("bf16") * 2 == whole
    for name in ("fp8", "fp8-e5m2", "int8"):
        assert sent(name) <= 0.27 * whole
    """
    )
    run_ranks(body, 4, plans("switch:4", "allreduce", "direct"))


def test_reduction_once_rounds_no_partial_sum(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    """By a direct schedule the result is the rounded sum of rounded contributions, which can be computed beside it."""
    body = (
        HELPERS
        + """
    refused(lambda: Communicator(ARGS[1], compress="int8", reduction="once"), "adds up what was added up before")
    c = Communicator(ARGS[0], choose="plan", compress="int8", reduction="once")
    codec, part = CODECS["int8"], 320
    def rounded(x):
        wire, out = torch.empty(codec.nbytes(len(x)), dtype=torch.uint8), torch.empty_like(x)
        codec.encode(x.clone(), wire, torch.empty_like(x)); codec.decode(wire, out)
        return out
    x, want = data(RANK, part * WORLD), []
    for owner in range(WORLD):
        mine = slice(owner * part, (owner + 1) * part)
        terms = [data(r, part * WORLD)[mine] if r == owner else rounded(data(r, part * WORLD)[mine]) for r in range(WORLD)]
        total = terms[0].clone()
        for term in terms[1:]:
            total += term
        want.append(rounded(total))
    c.allreduce(x)
    assert torch.equal(x, torch.cat(want))
    """
    )
    run_ranks(body, 4, plans("switch:4", "allreduce", "direct"), plans("ring:4", "allreduce", "ring"))


def test_the_other_collectives_are_compressed_too(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    body = (
        HELPERS
        + """
    comm = {name: Communicator(path, compress="fp16") for name, path in zip(ARGS[::2], ARGS[1::2])}
    part, n = 96, 96 * WORLD
    mine = slice(RANK * part, (RANK + 1) * part)
    def near(x, want):
        return (x.double() - want.double()).abs().max() < 0.01
    out = torch.zeros(n)
    comm["allgather"].allgather(out, data(RANK, part))
    assert near(out, torch.cat([data(r, part) for r in range(WORLD)])) and same_everywhere(out)
    out = torch.zeros(part)
    comm["reduce-scatter"].reduce_scatter(out, data(RANK, n))
    assert near(out, sum(data(r, n) for r in range(WORLD))[mine])
    x = data(RANK, n)
    comm["broadcast"].broadcast(x)
    assert near(x, data(0, n)) and same_everywhere(x)
    out = torch.zeros(n)
    comm["alltoall"].alltoall(out, data(RANK, n))
    assert near(out, torch.cat([data(r, n)[mine] for r in range(WORLD)]))
    """
    )
    names = ["allgather", "reduce-scatter", "broadcast", "alltoall"]
    run_ranks(body, 3, *[x for name in names for x in (name, plans("path:3", name))])
