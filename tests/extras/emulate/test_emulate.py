"""topo-emulate: the blueprint on paper, and, where the kernel lets namespaces be made, the machine
itself.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import patience
import pytest
from called import call_command
from emulated import run_emulated
from hypothesis import given, settings
from launch import lives, run_command
from needs import has_extra
from planned import synthesize
from random_graphs import graphs
from reports import Reports
from thorough import count_examples

from topoplan.cli.topoplan import main
from topoplan.runtime.extras.emulate import Blueprint, Network, blueprint, emulate, parse_rate
from topoplan.runtime.extras.emulate.blueprint import parse_order
from topoplan.synth.cost.host_costs import HostCosts, with_host
from topoplan.synth.ir.collective import collective_on
from topoplan.topo.derived.stripes import merge_switches
from topoplan.topo.errors import InfeasibleError, InputError
from topoplan.topo.graph import Link, Topology
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router


def forwarded(built: Blueprint, src: int, dst: int) -> list[tuple[int, ...]]:
    """The devices that packets from one rank to another pass, by the rules that the devices are
    given; at each stage all that a connection may take.
    """
    path: list[tuple[int, ...]] = [(built.home[src],)]
    while path[-1] != (built.home[dst],):
        following: set[int] = set()
        for device in path[-1]:
            rules = [hop for hop in built.hops[device] if hop.dst == dst]
            own = [hop.via for hop in rules if hop.src == src]
            usual = [hop.via for hop in rules if hop.src is None]
            assert len(own) <= 1
            assert len(usual) == 1
            following.update((own or usual)[0])
        path.append(tuple(sorted(following)))
        assert len(path) <= len(built.devices), "a loop"
    return path


@settings(max_examples=count_examples(60))
@given(graphs(switches=3, two_way=False))
def test_packets_take_the_route_that_the_hardware_takes(topology: Topology) -> None:
    built = blueprint(topology, Fraction(10**7))
    router = Router(merge_switches(topology))
    for (src, dst), path in built.paths.items():
        assert forwarded(built, src, dst) == [tuple(sorted(stage)) for stage in path]
        names = tuple(built.devices[stage[0]] for stage in path)
        assert all(link in router.topology.capacity_GBps for link in pairwise(names))
        route = router.route(src, dst)
        assert route is None or route == names


def test_rates_keep_their_proportions() -> None:
    built = blueprint(preset("dgx1"), parse_rate("50Mbit"))
    rates = sorted(
        {
            rate
            for cable in built.cables
            for rate in (cable.rate_ab, cable.rate_ba)
            if rate is not None
        }
    )
    assert rates == [50_000_000, 100_000_000]
    assert len(built.cables) == 16
    assert built.scale == Fraction(50_000_000, 8 * 25 * 10**9)


def test_what_no_rank_uses_is_not_built() -> None:
    """An NVSwitch box's network side carries nothing between its own GPUs."""
    built = blueprint(preset("dgx-a100"), parse_rate("100Mbit"))
    assert len(built.devices) == 9


def test_gpus_forward_only_where_nobody_else_can() -> None:
    built = blueprint(preset("ring:6"), parse_rate("10Mbit"))
    assert len(built.paths[0, 3]) == 4
    assert blueprint(preset("switch:4"), parse_rate("10Mbit")).paths[0, 3] == ((0,), (4,), (3,))


def test_an_order_puts_ranks_on_other_gpus() -> None:
    built = blueprint(preset("path:3"), parse_rate("10Mbit"), (2, 0, 1))
    assert built.topology.ranks == ("gpu2", "gpu0", "gpu1")
    assert parse_order("2,0,1", 3) == (2, 0, 1)


@pytest.mark.parametrize("text", ["0,1", "0,1,1", "0;1;2", "0,1,3", ""])
def test_orders_that_leave_a_gpu_out_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected each GPU"):
        parse_order(text, 3)


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        ("50Mbit", 5 * 10**7),
        ("1.5Gbit", 15 * 10**8),
        ("6.25MB/s", 5 * 10**7),
        ("800kbit", 8 * 10**5),
    ],
)
def test_rates_are_read(text: str, bps: int) -> None:
    assert parse_rate(text) == bps


@pytest.mark.parametrize("text", ["fast", "50", "-1Mbit", "0Mbit", "5Mbits", "1e99Mbit"])
def test_rates_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a rate"):
        parse_rate(text)


def test_one_way_machines_are_refused() -> None:
    one_way = Topology(
        "one-way", preset("path:2").devices, (Link("gpu0", "gpu1", Fraction(1), Fraction(1)),)
    )
    with pytest.raises(InfeasibleError, match="gpu1 cannot reach gpu0"):
        blueprint(one_way)


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "topoplan.cli.extras.emulate", *args]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["ring:3"], 2, "no command"),
        (["ring:3", "--"], 2, "no command"),
        (["nothing", "--", "true"], 2, "nothing"),
        (["ring:3", "--slowest", "fast", "--", "true"], 2, "is not a rate"),
        (["ring:3", "--order", "0,1", "--", "true"], 2, "expected each GPU"),
    ],
)
def test_bad_input_is_one_line(args: list[str], code: int, says: str) -> None:
    done = call_command("emulate", *args)
    assert done.returncode == code
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_the_programs_it_says_what_to_install() -> None:
    done = run_command(*command("ring:3", "--", "true"), env={"PATH": "/none"})
    assert done.returncode == 1
    assert "install iproute2" in done.stderr


@pytest.fixture(scope="module")
def star() -> Iterator[Network]:
    """A switch between three GPUs, one of them at half rate."""
    full, half = Fraction(1), Fraction(1, 2)
    switch = preset("switch:3")
    links = tuple(
        Link(x.src, x.dst, half if "gpu2" in (x.src, x.dst) else full, x.latency_us)
        for x in switch.links
    )
    with emulate(Topology("uneven", switch.devices, links), parse_rate("40Mbit")) as network:
        yield network


def in_rank(network: Network, rank: int, *args: str) -> str:
    done = subprocess.run(
        [*network.enter_rank(rank), *args], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.network("namespaces")
def test_links_have_their_rates_and_routes(star: Network) -> None:
    rates = [
        {
            q["options"]["rate"] * 8
            for q in json.loads(in_rank(star, rank, "tc", "-j", "qdisc"))
            if q["kind"] == "tbf"
        }
        for rank in range(3)
    ]
    assert rates == [{80_000_000}, {80_000_000}, {40_000_000}]
    (route,) = json.loads(in_rank(star, 0, "ip", "-j", "route", "get", star.blueprint.identity(2)))
    assert route["dev"] == "to3"
    assert route["prefsrc"] == star.blueprint.identity(0)


@pytest.mark.network("namespaces")
def test_a_cut_cable_carries_nothing_and_a_mended_one_does(star: Network) -> None:
    address = star.blueprint.identity(2)
    listen = (
        "import signal, socket, sys\n"
        "server = socket.create_server((sys.argv[1], 5000))\n"
        "print(flush=True)\n"
        "signal.pause()\n"
    )
    knock = "import socket, sys; socket.create_connection((sys.argv[1], 5000), 1)"
    knocking = [*star.enter_rank(0), sys.executable, "-c", knock, address]

    def is_answered() -> bool:
        return subprocess.run(knocking, check=False, stderr=subprocess.DEVNULL).returncode == 0

    listening = subprocess.Popen(
        [*star.enter_rank(2), sys.executable, "-c", listen, address], stdout=subprocess.PIPE
    )
    try:
        assert listening.stdout is not None
        patience.read_until(listening.stdout.fileno(), bool, "a server", [listening])
        patience.wait_until(is_answered, "an answer", [listening])
        star.cut("gpu2", "switch0")
        assert not is_answered()
        star.mend("gpu2", "switch0")
        patience.wait_until(is_answered, "an answer over the mended cable", [listening])
    finally:
        listening.kill()
        listening.wait()


def test_mending_adds_routes_again_but_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps rules when an interface goes down, and refuses the same one again."""
    made = blueprint(preset("ring:4"))
    own = made.home[0]
    hops = (*made.hops[own], replace(made.hops[own][0], src=2, via=made.hops[own][-1].via))
    network = Network(replace(made, hops={**made.hops, own: hops}))
    lines: list[str] = []
    monkeypatch.setattr(network, "_batch", lambda device, program, of: lines.extend(of))
    network.mend("gpu0", "gpu1")
    assert any(line.endswith("table 1002") or "table 1002 " in line for line in lines)
    assert not any(line.startswith("rule") for line in lines)


MARK = "TOPOPLAN_TEST_EMULATE"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An entry of the environment that whatever a test starts inherits, and nothing else on this
    host has.
    """
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    return f"{MARK}={value}".encode()


def holders(mark: bytes) -> int:
    """How many namespace holders with that entry in their environment there are on this host."""
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            holds = (entry / "cmdline").read_bytes() == b"sleep\0infinity\0"
            count += holds and mark in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
    return count


@pytest.mark.network("namespaces")
def test_every_rank_runs_in_a_machine_of_its_own_and_nothing_stays(mark: bytes) -> None:
    # one write: ranks print at once
    body = 'echo "$RANK $WORLD_SIZE $GLOO_SOCKET_IFNAME $(ip -br addr show id0)"'
    args = ["path:3", "--slowest", "20Mbit", "--order", "2,0,1", "--", "sh", "-c", body]
    done = run_command(*command(*args))
    assert done.returncode == 0, done.stderr
    assert "3 ranks, 0 other devices, 2 links of 20 to 20 Mbit/s" in done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [x[:7] for x in lines] == ["0 3 id0", "1 3 id0", "2 3 id0"]
    assert all(f"10.99.0.{i}/32" in done.stdout for i in (1, 2, 3))
    assert holders(mark) == 0


@pytest.mark.network("namespaces")
def test_the_first_failed_ranks_code_is_the_result() -> None:
    body = "test $RANK != 1 || exit 7; sleep 100000"
    done = run_command(*command("path:3", "--", "sh", "-c", body))
    assert done.returncode == 7


@pytest.mark.network("namespaces")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_whatever_ends_it(
    number: signal.Signals, tmp_path: Path, mark: bytes
) -> None:
    """Not even SIGKILL leaves a namespace or a rank behind, and a second machine beside it goes
    on.
    """
    started = tmp_path / "started"
    body = f"echo $$ > {started}; exec sleep 100000"
    with emulate(preset("path:2"), parse_rate("10Mbit")) as beside, Reports(started) as reports:
        running = subprocess.Popen(
            command("path:3", "--", "sh", "-c", body),
            stderr=subprocess.DEVNULL,
            preexec_fn=_heed_interrupts,
        )
        ranks = [int(pid) for pid in reports.read(3, "three ranks", [running])]
        assert holders(mark) == 2 + 3
        running.send_signal(number)
        patience.wait_for_ends([running])
        patience.wait_until(lambda: holders(mark) == 2, "the end of all but the machine beside it")
        patience.wait_until(lambda: not any(map(lives, ranks)), "the end of all ranks")
        assert "id0" in in_rank(beside, 0, "ip", "-br", "addr")
    assert holders(mark) == 0


def _heed_interrupts() -> None:
    """Undo what a shell does for a process in the background: it would ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.network("namespaces")
def test_a_plan_runs_on_the_links_and_on_nothing_else(tmp_path: Path) -> None:
    """Right results, measured against the emulated links: no faster than they can carry, their
    first burst aside.
    """
    machine, plan = with_host(preset("path:3"), HostCosts()), tmp_path / "plan.json"
    synthesize(collective_on("allreduce", machine), machine, "auto", 20).plan.save(plan)
    sizes = ("-b", "4K", "-e", "1M", "-f", "256", "-n", "2", "-w", "1", "--json")
    with emulate(machine, parse_rate("80Mbit")) as network:
        done, *others = run_emulated(network, tmp_path, "topoplan.cli.run", str(plan), *sizes)
    assert [rank.returncode for rank in (done, *others)] == [0, 0, 0], done.stdout
    small, large = json.loads(done.stdout[done.stdout.index("{") :])["rows"]
    assert small["wrong"] == large["wrong"] == 0
    assert 0 < large["bound_fraction"] < 1.3
    assert large["predicted_us"] is None or large["predicted_us"] > 0


@pytest.mark.network("namespaces")
@pytest.mark.skipif(not has_extra("calibration"), reason="nothing fits host costs")
def test_host_costs_are_fitted_with_the_emulated_rates(tmp_path: Path) -> None:
    machine, plan = preset("path:3"), tmp_path / "plan.json"
    synthesize(collective_on("allreduce", machine), machine, "auto", 20).plan.save(plan)
    asked = (str(plan), "--calibrate", "-o", str(tmp_path / "calibrated.json"))
    with emulate(machine, parse_rate("80Mbit")) as network:
        done, *others = run_emulated(network, tmp_path, "topoplan.cli.run", *asked)
    assert [rank.returncode for rank in (done, *others)] == [0, 0, 0], done.stdout
    written = Topology.load(tmp_path / "calibrated.json")
    assert written.extra["host"]["source"] == "topo-run --calibrate"
    assert max(written.capacity_GBps.values()) == Fraction(80, 8000)


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("ring:2 topo-run p.json --stock -b 1M", "ring:2 -- topo-run p.json --stock -b 1M"),
        ("--slowest 1Mbit ring:2 python x.py", "--slowest 1Mbit ring:2 -- python x.py"),
        ("ring:2 --order 1,0 -q python -c 'a b'", "ring:2 --order 1,0 -q -- python -c 'a b'"),
    ],
)
def test_where_two_dashes_are_missing_is_shown(
    given: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _refuse(given, capsys)
    assert f"put -- before the command: topoplan emulate {right} (see" in said
    assert "no command given; put it after --: " in _refuse("ring:2", capsys)


def _refuse(given: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on standard error with which a line of topoplan emulate is refused."""
    with pytest.raises(SystemExit) as ended:
        main(["emulate", *shlex.split(given)])
    said = capsys.readouterr()
    assert (ended.value.code, said.out, len(said.err.splitlines())) == (2, "", 1), said
    return said.err
