"""The classic systems keep what each promises: equal replicas, counted staleness, contraction,
bytes, errors on every rank.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from launch import run_ranks
from ranks import classic, classic_faults

from examples.classic import NAMES, system_of
from examples.classic.buckets import (
    BLOCK,
    BUCKET_BYTES,
    Buckets,
    dequantize,
    quantize,
    quantized_bytes,
)
from topoplan import InputError


@pytest.mark.long
def test_every_system_keeps_what_it_promises(plans: Callable[..., str]) -> None:
    """Those that average gradients, four steps from different seeds: all begin as the first worker,
    end within 1e-6 of averaging in one process (8-bit gradients: within 5 %), and send what they
    say, in several buckets; half precision included.

    With two workers and two helpers, the synchronous server adds up BytePS's shares. In the
    asynchronous one, one worker makes ten steps while the other makes none, whose next gradients
    are counted as ten steps stale; all end with the same model, having lowered the loss.

    On a ring and a path, averaging with neighbours alone keeps the mean and contracts at least by
    the second eigenvalue; with 8 bits, in 0.27 of the bytes, it contracts nearly as fast. Trained,
    both reach a loss within 5 % of averaging all gradients.
    """
    run_ranks(classic.every_system, 4, plans("ring:4", "allreduce", "ring"))


def test_a_worker_that_dies_is_named_or_left_out() -> None:
    """Worker 1 dies between steps. The asynchronous helper serves worker 0 to the end and reports
    the loss; the synchronous system raises an error that names rank 1, on the worker and on the
    helper, long before the deadline.
    """
    run_ranks(classic_faults.a_worker_dies, 3)


@pytest.mark.long
def test_wrong_use_is_the_same_error_on_every_rank() -> None:
    run_ranks(classic_faults.wrong_use, 3)


def test_every_system_says_what_it_promises_and_whence_it_is() -> None:
    assert len(NAMES) == 10
    for name in NAMES:
        system = system_of(name)
        assert (
            system.name == name
            and system.promise
            and system.source
            and "\n" not in system.promise + system.source
        )
    with pytest.raises(InputError, match="unknown system 'horovod'"):
        system_of("horovod")


@pytest.mark.parametrize("numel", [1, 256, 257, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eight_bits_are_off_by_half_a_level_and_with_noise_by_one_unbiased(
    numel: int, dtype: torch.dtype
) -> None:
    rows = (torch.randn(3, numel, generator=torch.Generator().manual_seed(numel)) * 10 + 100).to(
        dtype
    )
    packed = quantize(rows)
    assert packed.shape == (3, quantized_bytes(numel)) and packed.dtype == torch.uint8
    span = rows.float().amax(1, keepdim=True) - rows.float().amin(1, keepdim=True)
    slack = 1e-4 * 100 / 255  # float32's own rounding of values around 100
    assert ((dequantize(packed, numel) - rows.float()).abs() <= span / 510 + slack).all()
    noise = torch.Generator().manual_seed(0)
    many = rows.repeat(400, 1)
    tries = (dequantize(quantize(many, noise), numel) - many.float()).view(400, 3, numel)
    assert (tries.abs() <= span / 255 + slack).all()
    assert (tries.mean(0).abs() <= 5 * span / 510 / 20 + slack).all()


def test_eight_bits_keep_constants_exactly_and_show_what_is_not_finite() -> None:
    same = torch.full((1, 300), -2.5)
    assert torch.equal(dequantize(quantize(same), 300), same)
    for bad in (float("nan"), float("inf"), float("-inf")):
        rows = torch.zeros(1, 2 * BLOCK)
        rows[0, 5] = bad
        back = dequantize(quantize(rows), 2 * BLOCK)
        assert back[0, :BLOCK].isnan().all() and torch.equal(back[0, BLOCK:], rows[0, BLOCK:])


def test_buckets_keep_dtypes_apart_and_to_their_size() -> None:
    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            big = BUCKET_BYTES // 4
            self.a = torch.nn.Parameter(torch.zeros(big - 1))
            self.b = torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
            self.c = torch.nn.Parameter(torch.zeros(1))
            self.d = torch.nn.Parameter(torch.zeros(1))
            self.frozen = torch.nn.Parameter(torch.zeros(3), requires_grad=False)

    net = Mixed()
    buckets = Buckets(net, torch.device("cpu"))
    assert buckets.layout == [(BUCKET_BYTES // 4, "float32"), (5, "bfloat16"), (1, "float32")]
    net.b.grad = torch.ones(5, dtype=torch.bfloat16)
    flats = buckets.allocate()
    buckets.copy_gradients(flats)
    assert flats[1].tolist() == [1.0] * 5 and not flats[0].any()
    buckets.set_gradients([flat.fill_(2) for flat in flats])
    assert net.d.grad is not None and net.d.grad.item() == 2 and net.b.grad.tolist() == [2.0] * 5
    net.c.grad = torch.ones(1).to_sparse()
    with pytest.raises(InputError, match="sparse"):
        buckets.copy_gradients(flats)
