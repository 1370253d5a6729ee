"""topo-run --trace: when messages were sent and had arrived, beside the prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from called import call_command
from launch import run_joined
from nccl_standin import NcclStandIn
from sample_schedules import built
from trace_reader import read_trace

from topoplan.runtime.candidates import Candidate
from topoplan.runtime.compiled import Buffers
from topoplan.runtime.extras.traces import Stamp, pair_stamps, stamp_into
from topoplan.runtime.runners.programs import Messages
from topoplan.synth.plan import Plan


def test_topo_run_traces_what_it_measured_beside_what_it_predicted(
    plans: Callable[..., str], tmp_path: Path
) -> None:
    plan_file, target = plans("switch:2"), tmp_path / "trace.json"
    asked = (
        plan_file,
        "-b",
        "64K",
        "-e",
        "64K",
        "-n",
        "1",
        "-w",
        "0",
        "--choose",
        "plan",
        "--json",
    )
    for done in run_joined("topoplan.cli.run", *asked, "--trace", str(target), ranks=2):
        assert done.returncode == 0, done.stderr
    schedule = Plan.load(plan_file).entry_for(1 << 16).schedule
    events = read_trace(target.read_text(encoding="utf-8"))
    assert set(events) == {"predicted", "measured"}

    def count(kind: str) -> list[tuple[int, ...]]:
        keys = ("to", "step", "chunk", "segment", "bytes")
        return sorted((e["pid"], *(e["args"][key] for key in keys)) for e in events[kind])

    assert len(events["measured"]) == len(schedule.transfers) * schedule.segments
    assert count("measured") == count("predicted")
    refused = call_command("run", *asked, "--trace", str(target))
    assert refused.returncode == 2
    assert "--force" in refused.stderr


def test_what_lands_later_ends_later() -> None:
    """Two ranks exchange halves: every stamp finds its message, and pieces follow each other in
    it.
    """
    schedule = built("ring", "switch:2")
    stamps = [
        [(True, 1, 0, 1.0), (False, 1, 0, 5.0), (True, 1, 1, 6.0), (False, 1, 1, 9.0)],
        [(True, 0, 0, 2.0), (False, 0, 0, 4.0), (True, 0, 1, 5.0), (False, 0, 1, 8.0)],
    ]
    times = pair_stamps(schedule, 10, lambda elements: 4 * elements, stamps)
    assert [(t.src, t.step, t.begin_us, t.end_us, t.bytes) for t in times] == [
        (0, 0, 1.0, 4.0, 20), (0, 1, 6.0, 8.0, 20), (1, 0, 2.0, 5.0, 20), (1, 1, 5.0, 9.0, 20),
    ]  # fmt: skip


def test_a_trace_without_a_plan_is_refused() -> None:
    done = call_command("run", "--stock", "--nproc", "2", "--trace", "x.json")
    assert done.returncode == 2
    assert "--trace" in done.stderr


def test_a_trace_is_json(tmp_path: Path) -> None:
    done = call_command("run", "plan.json", "--trace", str(tmp_path / "x.svg"))
    assert done.returncode == 2 and "ends in .json" in done.stderr


def test_batches_are_stamped_too() -> None:
    """Over NCCL, here a stand-in with its rules: every message of every batch has its times, and
    sums stay right.
    """
    schedule = replace(built("ring", "switch:4"), segments=3)
    standin = NcclStandIn(4)
    tensors = [torch.full((120,), float(rank)) for rank in range(4)]
    stamps_of = []
    for rank, tensor in enumerate(tensors):
        with standin.host_of(rank) as transport:
            sender, stamps = Messages(transport, None), list[Stamp]()
            stamp_into(sender, stamps)
            sender.run(Candidate(schedule), Buffers(120, tensor, tensor))
            stamps_of.append(stamps)
    standin.play()
    assert all(torch.equal(tensor, torch.full((120,), 6.0)) for tensor in tensors)
    times = pair_stamps(schedule, 120, lambda elements: 4 * elements, stamps_of)
    assert len(times) == len(schedule.transfers) * 3
    assert all(time.begin_us <= time.end_us for time in times)
