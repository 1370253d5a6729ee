"""A group whose kernels fail, for any reason, plays messages."""

from __future__ import annotations

from importlib.util import find_spec
from subprocess import CalledProcessError
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton is not installed (the extra `kernels`)"
)


class Player:
    """A player whose kernels cannot be compiled."""

    def __init__(self, _: object) -> None: ...

    def load(self, *_: object, **__: object) -> None:
        raise CalledProcessError(1, "cc")


def make_nothing(*_: object, **__: object) -> None: ...


def fail(*_: object, **__: object) -> None:
    raise OSError("no driver")


def test_any_error_is_a_reason_for_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    from topoplan.runtime.kernels import memory, player
    from topoplan.runtime.kernels.opening import open_kernels

    gpu = SimpleNamespace(uuid="a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(player, "KernelPlayer", Player)
    group = SimpleNamespace(rank=lambda: 0, size=lambda: 2)
    for make, reason in (
        (fail, "rank 0: no symmetric memory: no driver"),
        (make_nothing, "rank 0: kernels fail: Command 'cc' returned non-zero exit status 1."),
    ):
        monkeypatch.setattr(memory, "make_symmetric", make)
        transport: Any = SimpleNamespace(
            kernels=None, rank=0, hosts=1, group=group, device=torch.device("cpu"),
            exchange=lambda value: [value],
        )  # fmt: skip
        assert open_kernels(transport) == reason
