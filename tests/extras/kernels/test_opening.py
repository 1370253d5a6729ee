"""A group whose kernels fail, for any reason, plays messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from subprocess import CalledProcessError
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from topoplan.runtime.extras.kernels.runner import GPUS
from topoplan.runtime.ranks.control import Control
from topoplan.runtime.ranks.transport import Transport
from topoplan.runtime.runners.contract import Opening

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton is not installed (the extra `kernels`)"
)


class OneHost(Control):
    """Ranks on one host that answer as `answer` says, which is given this rank's own value."""

    def __init__(self, answer: Callable[[Any], list[Any]]) -> None:
        self.rank, self.size, self.answer = 0, 2, answer

    def count_hosts(self) -> int:
        return 1

    def exchange(self, value: object) -> list[Any]:
        return self.answer(value)


class Ranks(SimpleNamespace):
    """A transport as far as kernels ask it."""

    rank, group, device = 0, None, torch.device("cpu")
    attach, find_part = Transport.attach, Transport.find_part

    def __init__(self, answer: Callable[[Any], list[Any]]) -> None:
        super().__init__(_parts={}, control=OneHost(answer))


class Player:
    """A player whose kernels cannot be compiled."""

    def __init__(self, _: object) -> None: ...

    def load(self, *_: object, **__: object) -> None:
        raise CalledProcessError(1, "cc")


def make_nothing(*_: object, **__: object) -> None: ...


def answer_beside(peer: object, value: object) -> list[object]:
    """Answer for another rank too, where the ranks tell each other what GPUs they have."""
    return [value, peer] if isinstance(value, tuple) else [value]


def fail(*_: object, **__: object) -> None:
    raise OSError("no driver")


def test_any_error_is_a_reason_for_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    from topoplan.runtime.extras.kernels import memory, player
    from topoplan.runtime.extras.kernels.opening import open_kernels

    gpu = SimpleNamespace(uuid="a GPU", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    free = [1 << 30]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0], 0))
    monkeypatch.setattr(player, "KernelPlayer", Player)
    for make, reason in (
        (fail, "rank 0: no symmetric memory: no driver"),
        (make_nothing, "rank 0: kernels fail: Command 'cc' returned non-zero exit status 1."),
    ):
        monkeypatch.setattr(memory, "make_symmetric", make)
        transport: Any = Ranks(lambda value: [value])
        assert open_kernels(transport) == reason
    free[0], transport._parts = 9 << 20, {}
    reason = "rank 0: 9 MiB of GPU memory are free; kernels take 72"
    assert open_kernels(transport) == reason


def test_different_gpus_agree_on_the_grid_of_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses symmetric memory whose sizes, and so the grids, differ between ranks."""
    from topoplan.runtime.extras.kernels import memory
    from topoplan.runtime.extras.kernels.opening import open_kernels

    large, small = (SimpleNamespace(uuid=str(n), multi_processor_count=n) for n in (132, 82))
    grids = []

    def make(_: object, __: object, multiprocessors: int, **___: object) -> None:
        grids.append(multiprocessors)
        raise OSError("enough")

    monkeypatch.setattr(memory, "make_symmetric", make)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 30, 0))
    for gpu, other in ((large, small), (small, large)):
        visible = {torch.device("cpu"): gpu, 0: large, 1: small}
        monkeypatch.setattr(torch.cuda, "get_device_properties", visible.get)
        peer = (None, (other.uuid, other.multi_processor_count))
        transport: Any = Ranks(partial(answer_beside, peer))
        assert open_kernels(transport) == "rank 0: no symmetric memory: enough"
    assert grids == [82, 82]


def test_kernels_that_are_named_on_cpus_are_refused_in_words() -> None:
    transport: Any = SimpleNamespace(links=SimpleNamespace(is_batched=False))
    plan: Any = None
    opening = Opening(plan, transport, keeps_bits=False)
    assert GPUS.prepare(transport) == GPUS.open(opening) == "kernels play on GPUs"
