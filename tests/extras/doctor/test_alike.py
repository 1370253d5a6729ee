"""Hosts that should be alike, compared with each other and with a reference: topo-probe --check."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from topoplan.cli.extras.doctor import main as doctor
from topoplan.cli.probe import main as probe
from topoplan.topo import probe_json
from topoplan.topo.devices import Device, Link, both_directions
from topoplan.topo.extras.doctor import ComparedHost, Finding, examine
from topoplan.topo.extras.doctor.alike import compare_hosts, name_hosts
from topoplan.topo.extras.doctor.metrics import METRICS
from topoplan.topo.facts import Fact, Facts, facts_to_json
from topoplan.topo.graph import Topology
from topoplan.topo.notes import assumed

Machine = Topology
BUS = tuple(f"0000:{i + 1}a:00.0" for i in range(8))


def make_host(
    gpus: Sequence[int] = range(8), nics: Sequence[int] = range(4), driver: str = "570.1"
) -> Machine:
    """A host with GPUs that are numbered from 0 on at the addresses of `gpus`, on one NVSwitch."""
    devices = [Device(f"gpu{n}", bus_id=BUS[i], extra={"name": "H100"}) for n, i in enumerate(gpus)]
    devices += [Device("cpu0", "cpu"), Device("nvswitch0", "switch", "nvswitch")]
    devices += [Device(f"mlx5_{i}", "nic", extra={"speed": 400_000}) for i in nics]
    links = [
        *(x for n, _ in enumerate(gpus) for x in cable(f"gpu{n}", "nvswitch0", 450, "nvlink")),
        *(x for n, _ in enumerate(gpus) for x in cable(f"gpu{n}", "cpu0", 48, "pcie")),
        *(x for i in nics for x in cable(f"mlx5_{i}", "cpu0", 48, "pcie")),
    ]
    facts = facts_to_json(Facts((Fact("nvml", "driver", driver, "NVML"),)))
    return Topology("host", tuple(devices), tuple(links), "written for a test", {"facts": facts})


def cable(a: str, b: str, rate: float, kind: str) -> list[Link]:
    return list(both_directions(Link(a, b, Fraction(rate), Fraction(1), kind, source="sysfs")))


def slow_down(machine: Machine, device: str, kind: str, share: float = 0.5) -> Machine:
    links = (
        replace(x, bandwidth_GBps=x.bandwidth_GBps * Fraction(share))
        if device in (x.src, x.dst) and x.kind == kind
        else x
        for x in machine.links
    )
    return replace(machine, links=tuple(links))


def slow_port(machine: Machine) -> Machine:
    devices = (
        replace(d, extra={"speed": 100_000}) if d.id == "mlx5_2" else d for d in machine.devices
    )
    return replace(machine, devices=tuple(devices))


def other_models(machine: Machine) -> Machine:
    devices = (
        replace(d, extra={"name": "H200"}) if d.kind == "gpu" else d for d in machine.devices
    )
    return replace(machine, devices=tuple(devices))


def without_links(machine: Machine, device: str, kind: str) -> Machine:
    links = (x for x in machine.links if x.kind != kind or device not in (x.src, x.dst))
    return replace(machine, links=tuple(links))


def compare(machines: Sequence[Machine], reference: Machine | None = None) -> list[Finding]:
    hosts = [
        ComparedHost(f"{letter}.json", x) for letter, x in zip("abcdefgh", machines, strict=False)
    ]
    like = None if reference is None else ComparedHost("good.json", reference)
    return compare_hosts(hosts, like)


# What is different of one host among five, with the finding's kind and message.
DIFFERENT: dict[str, tuple[Machine, str, str]] = {
    "GPU": (
        make_host([0, 1, 2, 4, 5, 6, 7]),
        "fewer-gpus",
        f"7 GPUs, where 4 other hosts have 8, none at {BUS[3]}",
    ),
    "NIC": (
        make_host(nics=[0, 1, 3]),
        "fewer-nics",
        "3 NICs, where 4 other hosts have 4: no mlx5_2",
    ),
    "PCIe": (
        slow_down(make_host(), "gpu5", "pcie"),
        "narrower-link",
        "1 pcie link between cpu and gpu at 24 GB/s, where 4 other hosts have 48 GB/s",
    ),
    "NVLink": (
        slow_down(make_host(), "gpu5", "nvlink"),
        "narrower-link",
        "1 nvlink link between gpu and switch at 225 GB/s, where 4 other hosts have 450 GB/s",
    ),
    "no NVLink": (
        without_links(make_host(), "gpu5", "nvlink"),
        "fewer-links",
        "7 nvlink links between gpu and switch, where 4 other hosts have 8",
    ),
    "port": (
        slow_port(make_host()),
        "slower-nic",
        "1 NIC at 12.5 GB/s, where 4 other hosts have 50 GB/s",
    ),
    "driver": (
        make_host(driver="565.2"),
        "other-driver",
        "the driver's version is 565.2, where 4 other hosts have 570.1",
    ),
    "model": (
        other_models(make_host()),
        "other-gpus",
        "8 x H200, where 4 other hosts have 8 x H100",
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.parametrize("place", [0, 2, 4])
def test_the_one_host_that_differs_among_five_is_named(what: str, place: int) -> None:
    odd, kind, message = DIFFERENT[what]
    machines = [make_host()] * 5
    machines[place] = odd
    (found,) = compare(machines)
    assert (found.what, found.severity) == (kind, "warning")
    assert found.message == f"{'abcde'[place]}.json: {message}"
    assert all(line.startswith(f"{'abcde'[place]}.json: ") for line in found.evidence)


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_reference_says_how_hosts_should_be(what: str) -> None:
    odd, kind, _ = DIFFERENT[what]
    (found,) = compare([odd], make_host())
    assert found.severity == (
        "error" if kind.startswith("fewer-") and what in "GPU NIC" else "warning"
    )
    assert found.what == kind and ", where good.json has " in found.message
    assert compare([make_host(), make_host()], make_host()) == []


def test_of_two_hosts_the_better_is_right_and_like_hosts_are_alike() -> None:
    (found,) = compare([make_host(range(7)), make_host()])
    assert found.message.startswith("a.json: 7 GPUs, where b.json has 8")
    assert compare([make_host()] * 5) == [] == compare([make_host(range(7))])


def test_equal_differences_are_one_finding_with_the_devices_of_all() -> None:
    narrow = slow_down(make_host(), "gpu1", "pcie")
    hosts = [
        ComparedHost(f"node{n}", narrow if n < 2 else make_host(), f"host{n}") for n in range(5)
    ]
    (found,) = compare_hosts(hosts)
    assert found.message.startswith("node0, node1: 1 pcie link between cpu and gpu at 24 GB/s")
    assert found.about == ("host0/cpu0", "host0/gpu1", "host1/cpu0", "host1/gpu1")


def test_rates_that_nothing_states_and_rates_that_vary_a_little_are_no_difference() -> None:
    guessed = slow_down(make_host(), "gpu1", "pcie")
    links = (replace(x, source=assumed("by a test")) for x in guessed.links)
    assert compare([replace(guessed, links=tuple(links)), make_host(), make_host()]) == []
    assert compare([slow_down(make_host(), "gpu1", "pcie", 0.95), make_host(), make_host()]) == []


def test_hosts_have_the_names_of_their_files_and_joined_ones_their_ids_too() -> None:
    empty = replace(make_host([]), name="empty")
    named = name_hosts(["a", "e", "a"], [make_host(), empty, make_host()])
    assert [(x.label, x.ident) for x in named] == [("a", "host0"), ("e", ""), ("a#2", "host1")]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return what writes machines to files, a.json and so on, in the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(*machines: Machine) -> list[str]:
        names = [f"{'abcde'[number]}.json" for number, _ in enumerate(machines)]
        for name, machine in zip(names, machines, strict=True):
            Path(name).write_text(probe_json.write(machine))
        return names

    return write


def test_the_command_compares_files_and_names_them(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    names = files(make_host(), make_host(), make_host(range(7)), make_host([]))
    assert probe([*names, "--check", "-q"]) == 0
    said = capsys.readouterr().out
    assert "warning: c.json: 7 GPUs, where a.json and b.json have 8" in said
    assert "warning: d.json: no GPUs, where a.json and b.json have 8" in said
    assert "host2" not in said and "not checked" not in said
    assert probe([*names, "--check"]) == 0 and "\nnot checked: " in capsys.readouterr().out


def test_the_exit_code_is_that_of_the_severity_asked_for(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    names = files(make_host(), make_host(), make_host(driver="1"))
    for severity, code in (("error", 0), ("warning", 1), ("note", 1)):
        assert doctor([*names, "--fail-on", severity]) == code
    assert doctor(["a.json", "b.json", "--fail-on", "note"]) == 0
    assert doctor(["a.json", "--like", "c.json"]) == 0  # a warning
    (more,) = files(make_host(range(7)))
    assert doctor([more, "--like", "b.json"]) == 1
    assert "error: a.json: 7 GPUs, where b.json has 8" in capsys.readouterr().out
    assert probe([more, "--check", "--like", "b.json", "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("topo-probe: a.json: 7 GPUs") and json.loads(captured.out)


def test_metrics_have_the_hosts_and_what_failed(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    names = files(make_host(), make_host(), make_host(range(7)))
    assert doctor([*names, "--prometheus", "--fail-on", "warning"]) == 1
    text = capsys.readouterr().out
    assert 'topo_check_passed{fail_on="warning"} 0\n' in text
    assert 'topo_check_gpus{host="c.json"} 7\n' in text
    assert 'severity="warning",what="fewer-gpus"' in text
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == {
        *METRICS
    }
    assert doctor([*names, "-o", "x.prom"]) == 0
    assert Path("x.prom").read_text().startswith("# HELP topo_check_passed")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--like", "dgx1"], "--like is for --check; give that too"),
        (["--fail-on", "note"], "--fail-on is for --check; give that too"),
        (["--prometheus"], "--prometheus is for --check; give that too"),
        (["--check", "--like", "nowhere"], "nowhere"),
    ],
)
def test_what_is_for_a_check_is_refused_without_it(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe(["dgx1", *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1


def test_a_reference_of_several_hosts_is_refused(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    names = files(make_host(), make_host())
    assert probe([*names, "-o", "both.json"]) == 0
    assert doctor(["a.json", "--like", "both.json"]) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith("topo-doctor: error: both.json: 2 hosts; expected one")
    )
    assert doctor(["both.json"]) == 0  # its hosts are compared
    assert examine(make_host()).checked == examine(make_host(range(7))).checked
