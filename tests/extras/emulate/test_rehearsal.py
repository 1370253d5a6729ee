"""Faults that topo-emulate causes while ranks run: cut and slow links, killed ranks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from launch import Ended, patient_ranks, run_command
from needs import has_extra

from topoplan.runtime.extras.emulate import blueprint, parse_rate
from topoplan.runtime.extras.emulate.rehearsal import EXAMPLE, Injection, parse_faults
from topoplan.runtime.ranks.launch import announce_step, count_steps
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


def test_faults_may_count_steps() -> None:
    """They come before those at times, in the order of the steps."""
    faults = parse_faults(
        "kill rank 2 at 1s, cut gpu0-gpu3 After Step 20, cut gpu1 after step 5", BUILT
    )
    assert [x.after_step for x in faults] == [5, 20, 0]
    assert [f"{x} {x.when}" for x in faults] == [
        "cut gpu1 after step 5",
        "cut gpu0-gpu3 after step 20",
        "kill rank 2 at 1s",
    ]


def test_the_rank_that_has_ended_most_steps_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have ended as many, but for one, or were killed."""
    monkeypatch.setenv("TOPOPLAN_READY", str(tmp_path))
    assert count_steps(tmp_path) == 0
    for rank in ("0", "11", "11"):
        monkeypatch.setenv("RANK", rank)
        announce_step()
    assert count_steps(tmp_path) == 2


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
        ("mend gpu0-gpu3 after step 0", "'0' is not a step; expected a number above 0"),
        ("kill rank 1 after step soon", "'soon' is not a step"),
        ("kill rank 1 after 3s", "expected faults such as"),
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


RANK_OF_STEPS = """
import sys, torch.distributed as dist, torch, topoplan
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def train():
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Linear(64, 64))
    model.register_comm_hook(None, topoplan.ddp_hook(sys.argv[1], on_fault=sys.argv[2]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(int(sys.argv[3])):
        optimizer.zero_grad()
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()

dist.init_process_group("gloo")
train()  # no barrier follows: the group of gloo's own has lost a link
"""


def train_emulated(
    machine: str, *arguments: str, options: Sequence[str] = (), **variables: str
) -> Ended:
    """Train on an emulated machine, by `arguments`: the plan, what faults do, and the steps."""
    return run_command(
        *(sys.executable, "-m", "topoplan.cli.extras.emulate", machine, "--slowest", "20Mbit"),
        *(*options, "--", sys.executable, "-c", RANK_OF_STEPS, *arguments),
        env={**patient_ranks(), **variables},
    )


@pytest.mark.skipif(
    not all(map(has_extra, ("recovery", "report", "summaries"))), reason="extras are not here"
)
@pytest.mark.network("namespaces")
def test_a_training_that_goes_on_writes_what_a_report_draws(
    plans: Callable[..., str], tmp_path: Path
) -> None:
    """A link is cut after a step of the optimizer; the events have its loss and the resumption."""
    from topoplan.cli.extras.report import main as report

    events, page, plan = tmp_path / "events.jsonl", tmp_path / "page.html", plans("full:3")
    faults = ("--inject", "cut gpu0-gpu1 after step 20")
    variables = {"TOPOPLAN_LOG_FILE": str(events)}
    done = train_emulated("full:3", plan, "replan", "400", options=faults, **variables)
    assert " s: cut gpu0-gpu1, after step " in done.stderr, done.stderr
    lost, resumed = map(json.loads, events.read_text().splitlines())
    assert (lost["event"], resumed["event"]) == ("fault", "resumed")
    assert lost["call"] > 20 and resumed["lost_links"] == ["gpu0 - gpu1"]
    assert report([plan, "--run", str(events), "-o", str(page), "--time-limit", "1", "-q"]) == 0
    assert ">link gpu0 - gpu1 was lost<" in page.read_text()


@pytest.mark.skipif(
    not all(map(has_extra, ("culprits", "summaries"))), reason="extras are not here"
)
@pytest.mark.network("namespaces")
def test_the_error_of_the_first_rank_is_the_last_line(plans: Callable[..., str]) -> None:
    """Only rank 0 prints a traceback."""
    faults = ("--inject", "kill rank 2 after step 3")
    done = train_emulated("full:3", plans("full:3"), "raise", "100000", options=faults)
    assert done.returncode != 0
    assert "[rank1]: Traceback" not in done.stderr
    said = done.stderr.splitlines()[-1]
    assert said.startswith("topo-emulate: rank 0: rank 2 does not answer"), done.stderr


@pytest.mark.network("namespaces")
def test_a_training_by_a_plan_for_another_machine_is_refused_once(
    plans: Callable[..., str],
) -> None:
    done = train_emulated("path:4", plans("full:4"), "raise", "3")
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("the emulated machine path:4 has no link gpu0 -> gpu2") == 1


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
