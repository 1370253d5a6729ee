"""Codecs: how far off they are, that rounding twice is rounding once, what they take; and
compressed collectives on ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import run_ranks
from needs import long_cases
from ranks import compression
from thorough import count_examples

from topoplan.runtime.extras.codecs.codecs import BF16, BLOCK, FP8, FP8_E5M2, FP16, INT8
from topoplan.runtime.extras.codecs.codecs import ScaledCodec as Codec
from topoplan.runtime.policy import Policy
from topoplan.topo.errors import InputError

Plans = Callable[..., str]
CODECS = {codec.name: codec for codec in (FP16, BF16, FP8, FP8_E5M2, INT8)}


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
@settings(max_examples=count_examples(60))
@given(seed=st.integers(0, 10**6), blocks=st.integers(1, 40), exponent=st.integers(-90, 90))
def test_errors_are_bounded_and_rounding_is_done_once(
    codec: Codec, seed: int, blocks: int, exponent: int
) -> None:
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
    """The scale is the least power of two that does: at most a factor of two is left unused, and
    nothing is cut off.
    """
    top = {"int8": 127.0, "fp8": 448.0, "fp8-e5m2": 57344.0}[codec.name]
    for factor, fits in (
        (1.0, True),
        (1 + 2**-20, False),
        (0.5, True),
        (2.0**60, True),
        (2.0**-60, True),
    ):
        x = torch.zeros(BLOCK)
        x[7] = top * factor
        out = there_and_back(codec, x)
        assert (out == x).all() == fits or codec.name != "int8"
        assert abs(out[7] - x[7]) <= codec.relative_error * x[7]
    assert torch.equal(there_and_back(codec, torch.full((BLOCK,), top)), torch.full((BLOCK,), top))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_stays_so_where_it_is(codec: Codec, bad: float) -> None:
    """A gradient scaler looks for it. Other blocks are not touched; tiny and huge numbers stay
    finite.
    """
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
    ("name", "part"),
    [("fp16", 0.5), ("bf16", 0.5), ("fp8", 0.27), ("fp8-e5m2", 0.27), ("int8", 0.27)],
)
def test_bytes_on_the_wire(name: str, part: float) -> None:
    codec = CODECS[name]
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
        on_device = x.to(device)
        wire = torch.empty(codec.nbytes(len(x)), dtype=torch.uint8, device=device)
        codec.encode(on_device.clone(), wire, torch.empty_like(on_device))
        out = torch.empty_like(on_device)
        codec.decode(wire, out)
        wires.append((wire.cpu(), out.cpu()))
    assert torch.equal(wires[0][0], wires[1][0]) and torch.equal(wires[0][1], wires[1][1])


def test_unknown_codecs_are_refused() -> None:
    with pytest.raises(InputError, match="compress='zip': expected one of fp16, bf16, fp8"):
        Policy(compress="zip")


@pytest.mark.parametrize(
    ("machine", "strategy", "codecs"),
    long_cases(
        [
            ("ring:3", "packing", [*CODECS]),
            ("ring:4", "auto", [*CODECS]),
            ("switch:4", "recursive-doubling", ["int8"]),
        ],
        "ring:4",
        "switch:4",
    ),
)
def test_compressed_sums_agree_bitwise_and_feedback_loses_nothing(
    plans: Plans, machine: str, strategy: str, codecs: list[str]
) -> None:
    """Several lengths: near the sum, the same bits on all ranks, and over all ranks what came out
    and what is kept for the next call is what went in.
    """
    plan = plans(machine, "allreduce", strategy)
    run_ranks(compression.sums_and_feedback, int(machine[-1]), plan, codecs)


def test_bytes_that_are_sent_are_counted_and_fall(plans: Plans) -> None:
    """Against the plan's own figures: a direct schedule sends 2 (n - 1) / n of the buffer a rank,
    exactly.
    """
    run_ranks(compression.bytes_fall, 3, plans("switch:3", "allreduce", "direct"))


def test_reduction_once_rounds_no_partial_sum(plans: Plans) -> None:
    """By a direct schedule the result is the rounded sum of rounded contributions, which can be
    computed beside it.
    """
    ring = plans("ring:3", "allreduce", "ring")
    run_ranks(compression.reduced_once, 3, plans("switch:3", "allreduce", "direct"), ring)


@pytest.mark.long
def test_the_other_collectives_are_compressed_too(plans: Plans) -> None:
    names = ["allgather", "reduce-scatter", "broadcast", "alltoall"]
    run_ranks(compression.other_collectives, 3, {name: plans("path:3", name) for name in names})
