"""Machines after a loss: what changes, what does not, and what is said of bad requests."""

from __future__ import annotations

from fractions import Fraction

import pytest

from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.errors import InputError
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset


def test_a_lost_link_is_lost_both_directions() -> None:
    healthy = preset("dgx1")
    hurt = degrade(healthy, Change(without_links=("gpu0:gpu3", "1:2")))
    gone = {("gpu0", "gpu3"), ("gpu3", "gpu0"), ("gpu1", "gpu2"), ("gpu2", "gpu1")}
    assert set(healthy.capacity_GBps) - set(hurt.capacity_GBps) == gone
    assert hurt.ranks == healthy.ranks
    assert "without gpu0-gpu3" in hurt.name and hurt.fingerprint != healthy.fingerprint


def test_a_link_is_scaled_exactly_both_directions() -> None:
    healthy = preset("mesh:2x2@25")
    hurt = degrade(healthy, Change(scale_links=("0:1=0.3",)))
    for link, c in healthy.capacity_GBps.items():
        assert hurt.capacity_GBps[link] == (
            c * Fraction(3, 10) if set(link) == {"gpu0", "gpu1"} else c
        )


def test_ranks_move_up_when_one_is_gone() -> None:
    hurt = degrade(preset("ring:5"), Change(without_ranks=(1, 4)))
    assert hurt.ranks == ("gpu0", "gpu2", "gpu3")
    assert set(hurt.capacity_GBps) == {("gpu2", "gpu3"), ("gpu3", "gpu2")}


def test_ids_may_have_colons() -> None:
    topology = Topology(
        "colons",
        (Device("gpu0"), Device("gpu1"), Device("pci-0000:41:00.0", "switch")),
        (
            *both_directions(Link("gpu0", "pci-0000:41:00.0")),
            *both_directions(Link("gpu1", "pci-0000:41:00.0")),
        ),
    )
    hurt = degrade(topology, Change(scale_links=("pci-0000:41:00.0:gpu1=2",)))
    assert hurt.capacity_GBps["gpu1", "pci-0000:41:00.0"] == 2
    assert hurt.capacity_GBps["gpu0", "pci-0000:41:00.0"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            Change(without_links=("gpu0:gpu5",)),
            "no link between gpu0 and gpu5; gpu0 is linked to gpu1",
        ),
        (Change(without_links=("gpu0",)), "expected A:B"),
        (Change(without_links=("gpu0:nobody",)), "expected A:B"),
        (Change(scale_links=("gpu0:gpu1",)), "expected A:B=FACTOR"),
        (Change(scale_links=("gpu0:gpu1=fast",)), "is not a number"),
        (Change(scale_links=("gpu0:gpu1=0",)), "expected more than 0"),
        (Change(scale_links=("gpu0:gpu1=-1",)), "expected more than 0"),
        (Change(("0:3",), scale_links=("gpu3:gpu0=2",)), "this link is left out"),
        (Change(without_ranks=(3,), scale_links=("0:3=2",)), "this link is left out"),
        (Change(scale_links=("0:3=2", "3:0=3")), "has been given a factor already"),
        (Change(without_ranks=(8,)), "no such rank"),
        (Change(without_ranks=(-1,)), "no such rank"),
        (Change(without_ranks=tuple(range(8))), "no GPU is left"),
    ],
)
def test_what_is_not_there_cannot_be_lost(change: Change, message: str) -> None:
    with pytest.raises(InputError, match=message):
        degrade(preset("dgx1"), change)


def test_no_change_is_no_change() -> None:
    assert not Change()
    assert Change(without_ranks=(0,))
