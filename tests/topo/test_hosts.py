"""Hosts joined to one machine: ranks in their order, NICs at their speeds, and what is assumed
said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from fake_library import serve
from fake_nvml import nvl72_tray, show_tree
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples
from verdicts import judge_pairs, list_findings

from topoplan.cli.probe import main as probe_main
from topoplan.topo.derived.hosts import NETWORK, ASSUMED_GBps, join_cpu_hosts, join_hosts
from topoplan.topo.derived.parts import split_hosts
from topoplan.topo.errors import InputError
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import preset
from topoplan.topo.probe.join import probe_local
from topoplan.topo.routes import Router


def fact(subject: str) -> dict[str, str]:
    return {"subject": subject, "key": "uuid", "source": "NVML", "value": "x"}


def host(
    name: str, gpus: int, nics: dict[str, float | None], notes: tuple[str, ...] = ()
) -> Topology:
    """GPUs and NICs on one CPU; a NIC of speed None has none that is known."""
    speeds = {
        nic: {} if speed is None else {"net_speed_GBps": speed} for nic, speed in nics.items()
    }
    devices = [Device("cpu0", "cpu"), *(Device(f"gpu{i}") for i in range(gpus))]
    devices += [Device(nic, "nic", extra=extra) for nic, extra in speeds.items()]
    links = [
        x
        for d in devices[1:]
        for x in both_directions(Link(d.id, "cpu0", Fraction(12), kind="pcie"))
    ]
    extra = {"notes": list(notes), "facts": [fact("gpu/0")]}
    return Topology(name, tuple(devices), tuple(links), extra=extra)


def uplinks(topology: Topology) -> dict[str, Fraction]:
    return {a: rate for (a, b), rate in topology.capacity_GBps.items() if b == NETWORK}


def test_two_hosts_have_all_devices_and_a_network_between_their_nics() -> None:
    joined = join_hosts(
        [host("a", 2, {"mlx5_0": 25.0}, ("odd",)), host("b", 3, {"mlx5_0": 12.5, "mlx5_1": 12.5})]
    )
    assert joined.ranks == ("host0/gpu0", "host0/gpu1", "host1/gpu0", "host1/gpu1", "host1/gpu2")
    assert uplinks(joined) == {
        "host0/mlx5_0": Fraction(25),
        "host1/mlx5_0": Fraction(25, 2),
        "host1/mlx5_1": Fraction(25, 2),
    }
    assert joined.is_symmetric
    assert len(joined.devices) == 4 + 6 + 1
    assert joined.by_id["host1/gpu0"].extra["host"] == "b"
    facts = [fact("host0/gpu/0"), fact("host1/gpu/0")]
    assert joined.extra == {"hosts": ["a", "b"], "notes": ["a: odd"], "facts": facts}
    assert Router(joined).route(0, 4) is not None


@settings(max_examples=count_examples(20))
@given(st.permutations([(h, f"gpu{i}") for h in range(3) for i in range(2)]), st.integers(1, 6))
def test_ranks_come_in_the_order_of_their_seats_and_others_are_left_out(
    order: list[tuple[int, str]], count: int
) -> None:
    seats = order[:count]
    used = sorted({h for h, _ in seats})
    joined = join_hosts([host(name, 2, {"eth0": 1.25}) for name in "abc"], seats)
    if len(used) == 1:
        assert joined.ranks == tuple(gpu for _, gpu in seats)
    else:
        gpus = [joined.by_id[rank] for rank in joined.ranks]
        assert [(d.extra["host"], d.id.rpartition("/")[2]) for d in gpus] == [
            ("abc"[h], gpu) for h, gpu in seats
        ]
    halves = [h for h in used if sum(x == h for x, _ in seats) == 1]
    assert sum("no rank, left out" in note for note in joined.extra["notes"]) == len(halves)
    assert Topology.loads(joined.dumps()) == joined


def test_one_host_is_itself() -> None:
    alone = host("a", 2, {})
    assert join_hosts([alone]) is alone
    assert join_hosts([alone], [(0, "gpu1"), (0, "gpu0")]).ranks == ("gpu1", "gpu0")


@settings(max_examples=count_examples(20))
@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=2, max_size=4))
def test_joined_hosts_come_apart_again(shapes: list[tuple[int, bool]]) -> None:
    hosts = [
        host(f"h{i}", n, {"ib0": 25.0} if up else {}, (f"odd {i}",))
        for i, (n, up) in enumerate(shapes)
    ]
    parts = split_hosts(join_hosts(hosts))
    assert list(parts) == [f"host{i}" for i in range(len(hosts))]
    for part, whole in zip(parts.values(), hosts, strict=True):
        assert part.by_id == whole.by_id and set(part.links) == set(whole.links)
        assert (part.name, part.extra["facts"]) == (
            whole.name,
            whole.extra["facts"],
        )
        assert part.extra["notes"][0] == whole.extra["notes"][0]
    assert split_hosts(hosts[0])[""] is hosts[0]


def test_a_machine_of_hundreds_of_hosts_keeps_no_facts_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("topoplan.topo.derived.hosts.MAX_FACTS", 2)
    joined = join_hosts([host(name, 1, {"ib0": 25.0}) for name in "abc"])
    assert (
        "facts" not in joined.extra
        and "3 facts of 3 hosts, more than 2" in joined.extra["notes"][-1]
    )


def test_different_machines_join() -> None:
    joined = join_hosts([preset("pcie-2socket"), preset("dgx1"), preset("ring:3")])
    assert len(joined.ranks) == 8 + 8 + 3
    assert all(Router(joined).route(a, b) for a, b in ((0, 8), (18, 0), (9, 16)))


@pytest.mark.parametrize(
    ("nics", "ends", "says"),
    [
        ({}, {"host0/cpu0": ASSUMED_GBps}, "no NIC; cpu0 taken to send 1.25 GB/s"),
        ({"eth0": None}, {"host0/eth0": ASSUMED_GBps}, "no NIC of known speed; eth0 taken to send"),
        (
            {"ib0": 50.0, "eth0": 0.125},
            {"host0/ib0": Fraction(50)},
            "eth0: down, slow or of unknown speed",
        ),
    ],
)
def test_what_is_assumed_of_a_hosts_way_out_is_noted(
    nics: dict[str, float | None], ends: dict[str, Fraction], says: str
) -> None:
    joined = join_hosts([host("a", 1, nics), host("b", 1, {"eth0": 1.25})])
    assert {end: rate for end, rate in uplinks(joined).items() if end.startswith("host0")} == ends
    assert [note for note in joined.extra["notes"] if note.startswith("a: ") and says in note]


@pytest.mark.parametrize(
    ("seats", "says"),
    [
        ([], "nothing to join"),
        ([(2, "gpu0")], "host 2; expected one from 0 to 1"),
        ([(0, "gpu9")], "has no GPU 'gpu9'; it has gpu0, gpu1"),
        ([(0, "gpu0"), (0, "gpu0")], "another rank's already"),
    ],
)
def test_seats_that_cannot_be_are_refused_in_one_line(
    seats: list[tuple[int, str]], says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        join_hosts([host("a", 2, {}), host("b", 2, {})], seats)
    assert "\n" not in str(caught.value)


def test_processes_stand_in_for_gpus_where_there_are_none() -> None:
    topology = join_cpu_hosts(["a", "b"], [0, 1, 0])
    assert topology.ranks == ("rank0", "rank1", "rank2")
    assert all(topology.by_id[rank].extra["stands_for"] == "cpu" for rank in topology.ranks)
    assert Router(topology).route(0, 2) == ("rank0", "host0", "rank2")
    assert Router(topology).route(0, 1) == ("rank0", "host0", NETWORK, "host1", "rank1")
    assert NETWORK not in join_cpu_hosts(["a"], [0, 0]).by_id


@pytest.fixture
def tray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Topology]:
    """A probed tray of four GB200; arguments are the clique, the cluster's UUID (hexadecimal) and
    the state of its fabric.
    """

    def probe_tray(
        name: str, clique: int = 7, cluster: str | None = None, state: int = 3
    ) -> Topology:
        machine = nvl72_tray()
        for gpu in range(4):
            machine.set(f"gpu.{gpu}.fabric.clique", clique).set(f"gpu.{gpu}.fabric.state", state)
            machine.set(f"gpu.{gpu}.uuid", f"GPU-{name}-{gpu}")
            if cluster is not None:
                machine.set(f"gpu.{gpu}.fabric.cluster", cluster)
        serve(monkeypatch, machine)
        return replace(probe_local(show_tree(machine, tmp_path)), name=name)

    return probe_tray


def domains(topology: Topology) -> list[tuple[int, set[Fraction]]]:
    """How many GPUs each NVSwitch joins, and at which rates."""
    switches = [d.id for d in topology.devices if d.family == "nvswitch"]
    rates = [
        [c for (_, b), c in topology.capacity_GBps.items() if b == switch] for switch in switches
    ]
    return [(len(of), set(of)) for of in rates]


def test_trays_of_one_clique_are_one_nvlink_domain(tray: Callable[..., Topology]) -> None:
    a, b, apart = tray("a"), tray("b"), tray("c", clique=8)
    joined = join_hosts([a, b])
    assert domains(joined) == [(8, {Fraction(900)})]
    assert joined.by_id["nvswitch0"].in_network == a.by_id["nvswitch0"].in_network
    assert Router(joined).route(0, 7) == ("host0/gpu0", "nvswitch0", "host1/gpu3")
    assert Topology.loads(joined.dumps()) == joined
    assert domains(join_hosts([a, apart])) == [(4, {Fraction(900)})] * 2
    assert domains(join_hosts([a, apart, b])) == [(4, {Fraction(900)}), (8, {Fraction(900)})]
    # joined ones may be joined again, in any order
    again = join_hosts([joined, apart])
    assert again.fingerprint == join_hosts([a, b, apart]).fingerprint
    assert domains(join_hosts([apart, joined])) == domains(again)
    # ranks may be any of the GPUs
    some = join_hosts([a, apart, b], [(2, "gpu3"), (0, "gpu1")])
    assert domains(some) == [(2, {Fraction(900)})]
    assert some.ranks == ("host1/gpu3", "host0/gpu1")


def test_fabrics_that_are_not_one_stay_apart(tray: Callable[..., Topology]) -> None:
    whole = tray("a")
    others = (tray("b", cluster="00" * 16), tray("c", cluster="ab" * 16), tray("d", state=2))
    for other in others:
        assert domains(join_hosts([whole, other])) == [(4, {Fraction(900)})] * 2
    alone = tray("e", cluster="00" * 16)
    assert domains(join_hosts([alone, others[0]])) == [(4, {Fraction(900)})] * 2


def test_verdicts_and_findings_are_those_of_each_host_and_of_the_fabric(
    tray: Callable[..., Topology],
) -> None:
    a, b, apart = tray("a"), tray("b"), tray("c", clique=8)
    alone = judge_pairs(a)
    joined = judge_pairs(join_hosts([a, b]))
    for host in ("host0", "host1"):
        own = [v for v in joined if v.a.startswith(host) and v.b.startswith(host)]
        assert [replace(v, a=v.a.partition("/")[2], b=v.b.partition("/")[2]) for v in own] == list(
            alone
        )
    across = {(v.a, v.b): v for v in joined if v.a.partition("/")[0] != v.b.partition("/")[0]}
    assert len(across) == 16 and {(v.kind, v.answer) for v in across.values()} == {("p2p", "yes")}
    assert "clique 7" in across["host0/gpu0", "host1/gpu0"].evidence[0]
    # the same finding on both hosts is one
    (idle,) = list_findings(join_hosts([a, b]))
    assert (idle.what, len(idle.about)) == ("slow-pcie-now", 8) and idle.message.startswith(
        "host0, host1: gpu0, "
    )
    # the other clique has no NVLink to the first, though its cluster is the same
    assert len(judge_pairs(join_hosts([a, apart]))) == 2 * len(alone)
    split = [f for f in list_findings(join_hosts([a, b, apart])) if f.what == "fabric-split"]
    assert [(f.severity, len(f.about), f.about[-1]) for f in split] == [
        ("warning", 12, "host2/gpu3")
    ]
    assert "host0, host1 (clique 7) | host2 (clique 8)" in split[0].message


def test_an_xml_of_two_hosts_is_one_domain_too(more_inputs: Callable[[str], Path]) -> None:
    topology = resolve(str(more_inputs("nccl_xml/GB300MP-2hosts.xml")))
    assert domains(topology) == [(8, {Fraction(7218, 10)})]
    verdicts = judge_pairs(topology)
    assert {
        v.b.partition("/")[0] for v in verdicts if v.kind == "rdma" and v.a.startswith("host1")
    } == {"host1"}
    assert sum(v.kind == "p2p" for v in verdicts) == 8 * 7 // 2
    assert domains(join_hosts([topology, topology])) == [(8, {Fraction(7218, 10)})] * 2


BRIDGED = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tPIX\t0-7\t0
GPU1\tNV12\t X \tPIX\t0-7\t0
NIC0\tPIX\tPIX\t X
"""
EIGHT = (
    "\t".join(["", *(f"GPU{i}" for i in range(8)), "NIC0"])
    + "\n"
    + "\n".join(
        "\t".join([f"GPU{i}", *("X" if i == j else "NV18" for j in range(8)), "NODE"])
        for i in range(8)
    )
)
XML = """\
<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
<pci busid="0000:17:00.0" class="0x030200" link_speed="" link_width="0"><gpu dev="0" sm="89" gdr="1"/></pci>
<pci busid="0000:18:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
<nic><net name="mlx5_0" dev="0" speed="400000" port="1"/></nic></pci></cpu></system>
"""


def run_probe(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Topology | str]:
    """The exit code of topo-probe, and what it printed: a topology, or the line of an error."""
    code = probe_main([*map(str, arguments), "--json"])
    printed = capsys.readouterr()
    return code, Topology.loads(printed.out) if code == 0 else printed.err


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    texts = {
        "a.txt": BRIDGED,
        "b.xml": XML,
        "c.json": host("c", 1, {"eth0": None, "ib0": None}).dumps(),
        "d.txt": EIGHT,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: tmp_path / name for name in texts}


def rates(topology: Topology, kind: str) -> set[tuple[str, Fraction | int]]:
    """The hosts of a topology with the rates of their links of a kind."""
    return {
        (x.src.partition("/")[0], x.bandwidth_GBps)
        for x in topology.links
        if x.kind == kind and "/" in x.src
    }


def test_files_of_several_hosts_in_any_formats_are_one_machine(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, joined = run_probe(
        capsys, files["a.txt"], files["b.xml"], files["c.json"], files["d.txt"]
    )
    assert code == 0 and isinstance(joined, Topology)
    assert joined.extra["hosts"] == ["a", "b", "c", "d"] and len(joined.ranks) == 2 + 1 + 1 + 8
    # by 12 and 18 NVLinks: A100 with Gen4 and 200 Gb/s, H100 with Gen5 and 400 Gb/s; the others as
    # before
    assert rates(joined, "pcie") == {
        ("host0", 24),
        ("host1", 12),
        ("host1", 48),
        ("host2", 12),
        ("host3", 48),
    }
    assert rates(joined, "network") == {
        ("host0", 25),
        ("host1", 50),
        ("host2", Fraction(5, 4)),
        ("host3", 50),
    }
    sources = {
        x.source or ""
        for x in joined.links
        if x.kind in ("pcie", "network") and x.src.startswith("host3")
    }
    assert all(source.startswith("assumed: ") and "18 NVLinks" in source for source in sources)
    subjects = {fact["subject"] for fact in joined.extra["facts"]}
    assert {"host0/gpu/0", "host2/gpu/0", "host3/gpu/7/p2p/0"} <= subjects
    assert sum("taken to send" in note for note in joined.extra["notes"]) == 3


def test_what_the_files_do_not_say_can_be_given(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    names = (files["a.txt"], files["b.xml"], files["c.json"])
    code, stated = run_probe(
        capsys, *names, "--rate", "pcie=48", "--rate", "nic=50", "--rate", "nvlink=26.5"
    )
    assert code == 0 and isinstance(stated, Topology)
    assert rates(stated, "pcie") == {("host0", 48), ("host1", 48), ("host2", 12)}, (
        "what a file says stays"
    )
    assert rates(stated, "network") == {("host0", 50), ("host1", 50), ("host2", 50)}
    assert rates(stated, "nvlink") == {("host0", 12 * Fraction("26.5"))}
    assert not any("taken to send" in note for note in stated.extra["notes"])
    code, stated = run_probe(capsys, *names, "--network", "12.5")
    assert isinstance(stated, Topology)
    assert rates(stated, "network") == {
        ("host0", Fraction("12.5")),
        ("host1", 50),
        ("host2", Fraction("12.5")),
    }
    code, alone = run_probe(capsys, files["a.txt"], "--rate", "pcie=32")
    assert isinstance(alone, Topology) and {
        x.bandwidth_GBps for x in alone.links if x.kind == "pcie"
    } == {32}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--rate", "pci=48"), "expected KIND=GBps with one of pcie, nic,"),
        (("--rate", "pcie"), "such as pcie=48 (--rate)"),
        (("--rate", "pcie=fast"), "'fast' is not a number of GB/s above 0"),
        (("--rate", "nic=1", "--rate", "nic=2"), "nic has been given a rate already"),
        (("--rate", "xgmi=50"), "no xgmi link has a rate that is only assumed"),
        (
            ("--network", "-1"),
            "'-1' is not a number of GB/s above 0; write for example 25 or 12.5 (--network)",
        ),
    ],
)
def test_rates_that_cannot_be_are_refused_in_one_line(
    arguments: tuple[str, ...],
    says: str,
    files: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, error = run_probe(capsys, files["a.txt"], files["b.xml"], *arguments)
    assert code == 2 and isinstance(error, str) and says in error and error.count("\n") == 1


def test_rates_that_all_files_have_are_refused_too(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = run_probe(capsys, files["b.xml"], files["b.xml"], "--network", "25")
    assert code == 2 and "into a network are known" in str(error)
    code, error = run_probe(capsys, files["b.xml"], "--rate", "nic=25")
    assert code == 2 and "the rates of all NICs of b are known" in str(error)
