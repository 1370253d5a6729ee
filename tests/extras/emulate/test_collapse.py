"""topo-emulate --collapse: a switch through which several flows at once are slow."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from emulated import run_emulated
from needs import has_extra

import topoplan
from topoplan.runtime.extras.emulate import blueprint, emulate
from topoplan.runtime.extras.emulate.collapse import (
    collapsing,
    parse_collapses,
    read_counters,
)
from topoplan.topo.errors import InputError
from topoplan.topo.graph import Device, Link, Topology, both_directions

RATE_bps = Fraction(100_000_000)
COUNTERS = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
   to1: 9000000    1000    0    0    0     0          0         0    66000    1000    0    0    0     0       0          0
"""  # noqa: E501 (as the kernel writes it)


def build_star() -> Topology:
    """Four GPUs on one switch."""
    devices = [*(Device(f"gpu{i}") for i in range(4)), Device("plx0", "switch", "pcie")]
    links = [x for i in range(4) for x in both_directions(Link(f"gpu{i}", "plx0", Fraction(1)))]
    return Topology("star", tuple(devices), tuple(links))


def test_collapses_name_a_device_and_a_share_of_its_rates() -> None:
    built = blueprint(build_star(), RATE_bps)
    (found,) = parse_collapses(["plx0=0.05"], built)
    assert (found.device, found.factor) == ("plx0", Fraction(1, 20))
    for wrong in ("plx0", "gpu0=0.5", "plx0=1", "plx0=0", "plx1=0.5"):
        with pytest.raises(InputError, match=r"plx0=0\.05"):
            parse_collapses([wrong], built)
    with pytest.raises(InputError):
        parse_collapses(["plx0=0.1", "plx0=0.2"], built)


def test_counters_are_read_by_direction() -> None:
    found = read_counters(COUNTERS, ["to1", "to2"])
    assert found == {("to1", "in"): (9_000_000, 1000), ("to1", "out"): (66_000, 1000)}


@pytest.mark.network("namespaces")
def test_a_switch_collapses_under_several_flows_and_mends(tmp_path: Path) -> None:
    """Without a time that it must take: what is said is that it did collapse, and is well after."""
    if not has_extra("concurrency"):
        pytest.skip("the extra concurrency is not in this copy")
    star = build_star()
    free = topoplan.synthesize("alltoall", star)
    limited = topoplan.synthesize("alltoall", star, constraints={"concurrent": "switch=1"})
    said: list[str] = []
    for name, plan in (("free", free), ("limited", limited)):
        plan.save(tmp_path / f"{name}.json")
    with emulate(star, RATE_bps) as network:
        for name in ("free", "limited"):
            (collapse,) = parse_collapses(["plx0=0.1"], network.blueprint)
            folder = tmp_path / name
            folder.mkdir()
            with collapsing(network, [collapse], said.append):
                asked = ("-b", "1M", "-e", "1M", "-n", "1", "-w", "0", "--choose", "plan")
                plan_file = str(tmp_path / f"{name}.json")
                ended = run_emulated(network, folder, "topoplan.cli.run", plan_file, *asked)
            assert all(done.returncode == 0 for done in ended), ended[0].stdout
            assert "# wrong elements: 0" in ended[0].stdout
    assert all(text.startswith("plx0 collapsed ") for text in said)
    assert not said[0].startswith("plx0 collapsed 0 ")
