"""What plays on devices: used where all ranks have it, and its absence named where one lacks it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from topoplan.runtime.players import on_devices
from topoplan.runtime.ranks.control import find_first
from topoplan.topo.errors import InputError


class Player:
    """A player that a test can see being opened."""

    def __init__(self) -> None:
        self.opened = 0

    def refuse(self, _: object, *, same_bits: bool) -> str | None:
        return "its bits differ" if same_bits else None

    def open(self, _: object) -> Player:
        self.opened += 1
        return self


@pytest.mark.parametrize("other", [None, "it was not built"])
def test_what_one_rank_lacks_no_rank_opens(
    monkeypatch: pytest.MonkeyPatch, other: str | None
) -> None:
    player: Any = Player()
    monkeypatch.setattr(on_devices, "find_device_player", lambda _: player)
    control = SimpleNamespace(agree=lambda own: find_first([own, other]))
    transport: Any = SimpleNamespace(links=SimpleNamespace(device_player="gpus"), control=control)
    plan: Any = None
    found = on_devices.open_memory(transport, plan, same_bits=False)
    assert found == (player if other is None else "rank 1: it was not built")
    assert player.opened == (other is None)
    if other is None:
        assert on_devices.open_memory(transport, plan, same_bits=True) == "its bits differ"


def test_a_copy_without_the_extra_names_it_to_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def lack(_: object) -> None:
        raise InputError("gpus: the extra 'kernels' is not in this copy")

    monkeypatch.setattr(on_devices, "find_device_player", lack)
    control = SimpleNamespace(agree=lambda own: find_first([own, None]))
    transport: Any = SimpleNamespace(links=SimpleNamespace(device_player="gpus"), control=control)
    plan: Any = None
    found = on_devices.open_memory(transport, plan, same_bits=False)
    assert found == "rank 0: gpus: the extra 'kernels' is not in this copy"
