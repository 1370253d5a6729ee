"""Faults that topo-emulate causes while ranks run: cut and slow links, killed ranks."""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction

import pytest
from launch import patient_ranks, run_command

from topoplan.runtime.extras.emulate import blueprint, parse_rate
from topoplan.runtime.extras.emulate.rehearsal import EXAMPLE, Injection, parse_faults
from topoplan.topo.errors import InputError
from topoplan.topo.presets import preset

BUILT = blueprint(preset("full:4"), parse_rate("10Mbit"))


def test_faults_are_read_in_the_order_of_their_times() -> None:
    faults = [
        Injection(2, "cut", "gpu0-gpu3", (("gpu0", "gpu3"),)),
        Injection(4, "mend", "gpu0-gpu3", (("gpu0", "gpu3"),)),
        Injection(5, "slow", "gpu1-gpu2", (("gpu1", "gpu2"),), Fraction(1, 4)),
        Injection(8, "kill", rank=2),
    ]
    assert parse_faults(EXAMPLE, BUILT) == faults
    text = (
        "Kill rank2 at 8, slow gpu1:gpu2 x.25 at 5s, mend gpu0-gpu3 at 4.0 s, "
        "cut gpu0-gpu3 at 2000ms"
    )
    assert parse_faults(text, BUILT) == faults
    assert ", ".join(f"{x} at {x.at_s:g}s" for x in faults) == EXAMPLE


def test_names_of_devices_may_have_hyphens() -> None:
    built = replace(BUILT, devices=("a", "a-b", "b-c", "c"))
    assert parse_faults("cut a-b-c at 1s", built)[0].links in ((("a", "b-c"),), (("a-b", "c"),))
    assert parse_faults("cut b-c-a-b at 1s", built)[0].links == (("b-c", "a-b"),)


def test_a_device_stands_for_all_its_links() -> None:
    """A NIC at half its rate is slow in all its links."""
    (fault,) = parse_faults("slow gpu2 x0.5 at 1s", BUILT)
    assert str(fault) == "slow gpu2 x0.5"
    assert {frozenset(x) for x in fault.links} == {
        frozenset(("gpu2", f"gpu{i}")) for i in (0, 1, 3)
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected faults such as 'cut gpu0-gpu3 at 2s"),
        ("cut gpu0-gpu3", "expected faults such as"),
        ("cut gpu0-gpu3 at 1s,", "'': expected faults such as"),
        ("cutt gpu0-gpu3 at 1s", "did you mean 'cut'"),
        ("cut gpu0-gpu4 at 1s", "'gpu0-gpu4' is no link or device of the emulated machine"),
        ("cut gpu0 gpu3 at 1s", "is no link or device of the emulated machine"),
        ("mend gpu0-gpu3 at soon", "'soon' is not a time"),
        ("mend gpu0-gpu3 at -1s", "'-1s' is not a time"),
        ("slow gpu0-gpu3 at 1s", "a factor of its rate above 0"),
        ("slow gpu0-gpu3 x0 at 1s", "a factor of its rate above 0"),
        ("kill rank 4 at 1s", "expected rank 0 to rank 3"),
        ("kill gpu0 at 1s", "'gpu0' is not a rank"),
    ],
)
def test_what_is_no_fault_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_faults(text, BUILT)
    assert says in str(refused.value)


@pytest.mark.network("namespaces")
def test_faults_are_caused_once_all_ranks_are_ready() -> None:
    """A killed rank does not end the others; what comes after their end is listed."""
    rank = (
        "import os, patience, signal, subprocess\n"
        "from topoplan.runtime.ranks.launch import announce_ready\n"
        "def show(*words): return subprocess.check_output(words, text=True)\n"
        "announce_ready()\n"
        "if os.environ['RANK'] == '2': signal.pause()\n"
        "port = 'to' + str(1 - int(os.environ['RANK']))\n"
        "patience.wait_until(lambda: 'DOWN' in show('ip', '-br', 'link', 'show', port), 'a cut')\n"
        "if os.environ['RANK'] == '0': print(show('tc', 'qdisc', 'show', 'dev', 'to2'))\n"
    )
    faults = (
        "cut gpu0-gpu1 at 0.1s, kill rank 2 at 0s, slow gpu0-gpu2 x0.5 at 0s, mend gpu0-gpu1 at 99s"
    )
    done = run_command(
        *(sys.executable, "-m", "topoplan.cli.extras.emulate", "ring:3", "--slowest", "20Mbit"),
        *("--inject", faults, "--", sys.executable, "-c", rank),
        env=patient_ranks(),
    )
    assert done.returncode == 0, done.stderr
    assert "rate 10Mbit" in done.stdout
    _, ready, kill, slow, cut, undone = done.stderr.splitlines()
    assert "all ranks are ready" in ready
    assert kill.endswith(" s: kill rank 2")
    assert slow.endswith(" s: slow gpu0-gpu2 x0.5")
    assert cut.endswith(" s: cut gpu0-gpu1")
    assert undone.endswith("ended before these faults: mend gpu0-gpu1 at 99s")
