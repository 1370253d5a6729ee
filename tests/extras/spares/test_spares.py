"""Plans for what is left if a link or a NIC is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from called import call_command
from planned import synthesize

import topoplan
from topoplan.extras import Extra
from topoplan.synth.extras.spares.planning import add_spares, list_losses, plan_without
from topoplan.synth.extras.spares.section import Spares
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.plan import Plan
from topoplan.synth.plan_text import hash_of
from topoplan.topo.derived.lost_links import PairRoutes
from topoplan.topo.errors import InputError, VerificationError
from topoplan.topo.graph import Device, Link, Topology
from topoplan.topo.presets import preset


def make_plan(name: str) -> Plan:
    topology = preset(name)
    return synthesize(collective_on("allreduce", topology), topology, "auto", 5).plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan("ring:3")


@pytest.fixture(scope="module")
def spared(plan: Plan) -> Plan:
    return add_spares(plan, 1)


def test_each_loss_has_a_spare_in_the_file(plan: Plan, spared: Plan, tmp_path: Path) -> None:
    spared.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == spared
    assert loaded.hash != plan.hash
    assert len(loaded.spares) == 3
    for spare in loaded.spares:
        pairs = PairRoutes(plan.topology).find_unreached(spare.lost)
        left = loaded.find_spare(spare.lost, pairs)
        assert left is not None
        left.verify()
        assert left.gap_of(left.entries[-1]) == 0
        gone = {(a, b) for link in spare.lost for a, b in (link, link[::-1])}
        assert left.topology.capacity_GBps.keys() == plan.topology.capacity_GBps.keys() - gone
        for schedule in left.schedules:
            sent = {(min(x.src, x.dst), max(x.src, x.dst)) for x in schedule.transfers}
            assert sent.isdisjoint(pairs)
        assert loaded.find_spare(spare.lost, pairs[1:]) is None
    assert loaded.find_spare([("gpu0", "gpu1"), ("gpu0", "gpu2")], []) is None


def test_spares_that_are_made_anew_replace_the_old_ones(plan: Plan, spared: Plan) -> None:
    old = replace(spared, extensions=(Spares(spared.spares[:1]),))
    again = add_spares(old, 1)
    assert again == spared
    assert len(again.extensions) == 1


def test_no_plan_uses_a_path_that_sockets_do_not_take() -> None:
    """A path over a NIC still joins gpu0 and gpu1, but the route between them is lost."""
    devices, links = [Device("gpu0"), Device("gpu1"), Device("gpu2"), Device("gpu3")], []
    devices += [Device("nic", "nic"), Device("rail", "switch"), Device("gpu4"), Device("gpu5")]
    pairs = [("gpu0", "gpu1"), ("gpu1", "gpu2"), ("gpu2", "gpu3"), ("gpu3", "gpu0")]
    pairs += [("gpu0", "nic"), ("gpu1", "nic"), ("nic", "rail"), ("gpu4", "rail"), ("gpu5", "rail")]
    links = [Link(a, b, Fraction(2)) for pair in pairs for a, b in (pair, pair[::-1])]
    topology = Topology("two ways", tuple(devices), tuple(links))
    lost = [("gpu0", "gpu1"), ("gpu0", "gpu3")]
    unreached = frozenset(PairRoutes(topology).find_unreached(lost))
    assert (0, 1) in unreached
    collective = collective_on("allreduce", topology)
    left = plan_without(collective, topology, lost, unreached, 0.5, reproducible=False)
    left.verify()
    for schedule in left.schedules:
        sent = {(min(x.src, x.dst), max(x.src, x.dst)) for x in schedule.transfers}
        assert sent.isdisjoint(unreached)


def test_a_plan_without_spares_is_written_as_before(plan: Plan, spared: Plan) -> None:
    data = plan.to_json()
    assert "spares" not in data
    assert data["version"] == 1
    changed = spared.to_json()
    assert changed["version"] == 2
    changed.pop("spares")
    with pytest.raises(VerificationError, match="does not match its hash"):
        Plan.from_json(changed)


def test_a_wrong_spare_is_refused_before_it_is_used(plan: Plan, spared: Plan) -> None:
    """A spare whose schedules use a link that is lost fails its verification."""
    wrong = replace(spared.spares[0], entries=plan.entries)
    broken = replace(spared, extensions=(Spares((wrong,)),))
    with pytest.raises(VerificationError):
        broken.use_spare(wrong).verify()


def test_a_copy_without_the_extra_reads_the_plan_alone(
    plan: Plan, spared: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = json.dumps(spared.to_json())
    monkeypatch.setattr(Extra, "is_here", property(lambda extra: extra.name != "spares"))
    loaded = Plan.loads(text, "plan.json")
    assert loaded == plan
    assert loaded.hash == plan.hash
    assert not loaded.spares
    assert loaded.find_spare(spared.spares[0].lost, []) is None
    (said,) = caplog.messages
    assert said == (
        "plan.json: read without the field spares: the extra 'spares' is not in this copy of "
        "topoplan; install a copy that has it"
    )
    with pytest.raises(InputError, match="spare: the extra 'spares' is not in this copy"):
        topoplan.synthesize("allreduce", "ring:4", spare="links")
    with pytest.raises(InputError, match="has no spares"):
        loaded.use_spare(spared.spares[0])


def test_spares_of_a_reproducible_plan_have_a_bracketing_of_their_own() -> None:
    made = topoplan.synthesize("allreduce", "ring:4", reproducible=True, spare="links")
    data = made.to_json()
    assert [*data].index("spares") < [*data].index("reproducible")
    loaded = Plan.from_json(data)
    assert loaded == made
    assert loaded.spares and all(made.use_spare(spare).bracketing for spare in loaded.spares)


def test_spares_have_no_spares(spared: Plan) -> None:
    data = spared.to_json()
    data["spares"][0]["spares"] = []
    data["hash"] = hash_of({key: value for key, value in data.items() if key != "hash"})
    with pytest.raises(VerificationError, match=r"spares\[0\]: unknown field 'spares'"):
        Plan.from_json(data)


def test_losses_that_look_alike_share_a_spare() -> None:
    """Two hosts of one GPU and one NIC: ranks cannot tell which link between them is lost."""
    names = ["gpu0", "nic0", "switch0", "nic1", "gpu1"]
    kinds = {"gpu": "gpu", "nic": "nic", "switch": "switch"}
    devices = tuple(Device(name, kinds[name[:-1]]) for name in names)
    links = tuple(Link(x, y, Fraction(1)) for a, b in pairwise(names) for x, y in ((a, b), (b, a)))
    (loss,) = list_losses(Topology("two", devices, links))
    assert loss.of[-2:] == ["nic0", "nic1"]
    assert len(loss.lost) == 4
    assert loss.disconnects


def test_only_plans_for_all_gpus_have_spares() -> None:
    with pytest.raises(InputError, match="spare plans are for all GPUs of a machine"):
        topoplan.synthesize("allreduce", "ring:4", group=[0, 1], spare="links")
    with pytest.raises(InputError, match="spare='ranks': expected 'links'"):
        topoplan.synthesize("allreduce", "ring:4", spare="ranks")


def test_the_command_lists_what_each_loss_leaves(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    args = ["synth", "allreduce", "path:3", "--spare", "links"]
    done = call_command(*args, "--json", "-o", str(path))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["spares"]
    assert [row["disconnects"] for row in rows] == [True, True]
    assert not Plan.load(path).spares
    done = call_command(*args, "--bound-only")
    assert done.returncode == 2
    assert "--bound-only with --spare links: spares are for plans" in done.stderr
