"""Traces: as many events as transfers and segments, no two of a thread at once, and the time that
was predicted.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from called import call_command
from hypothesis import given
from hypothesis import strategies as st
from launch import run_joined
from nccl_standin import NcclStandIn
from planned import synthesize
from sample_schedules import built

from topoplan.runtime.candidates import Candidate
from topoplan.runtime.compiled import Buffers
from topoplan.runtime.measuring.trace import Stamp, pair_stamps, stamp_into
from topoplan.runtime.runners.programs import Messages
from topoplan.synth.cost.affine import costs_between_gpus
from topoplan.synth.cost.host_costs import HostCosts
from topoplan.synth.cost.segmentation import reroute, time_us
from topoplan.synth.cost.transfer_times import predict_times
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.pictures.chrome_trace import write_plan_trace
from topoplan.synth.plan import Plan
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router


def read_trace(text: str) -> dict[str, list[dict[str, Any]]]:
    """Return the events of a trace by category, having checked their structure."""
    trace = json.loads(text)
    events: dict[str, list[dict[str, Any]]] = defaultdict(list)
    named = set()
    for event in trace["traceEvents"]:
        assert event["ph"] in ("M", "X")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["dur"] >= 0
        assert event["ts"] >= 0
        assert {"bytes", "link", "step"} <= set(event["args"])
        assert ("process_name", event["pid"], 0) in named
        assert ("thread_name", event["pid"], event["tid"]) in named
        events[event["cat"]].append(event)
    assert {pid for name, pid, _ in named if name == "process_name"} == set(
        range(trace["otherData"]["ranks"])
    )
    check_threads([event for of in events.values() for event in of])
    return events


def check_threads(events: list[dict[str, Any]]) -> None:
    """No two events of a thread overlap: a viewer would drop one of them."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        begin = round(event["ts"] * 1000)
        threads[event["pid"], event["tid"]].append((begin, begin + round(event["dur"] * 1000)))
    for spans in threads.values():
        ends = 0
        for begin, end in sorted(spans):
            assert begin >= ends
            ends = end


def test_topo_synth_writes_the_trace_of_its_schedule(tmp_path: Path) -> None:
    plan_file, trace_file = tmp_path / "plan.json", tmp_path / "trace.json"
    asked = (
        "--collective",
        "allreduce",
        "--topology",
        "dgx1",
        "--strategy",
        "packing",
        "--size",
        "16M",
    )
    done = call_command("synth", *asked, "-o", str(plan_file), "--trace", str(trace_file))
    assert done.returncode == 0, done.stderr
    schedule = Plan.load(plan_file).entry_for(1 << 24).schedule
    events = read_trace(trace_file.read_text(encoding="utf-8"))["predicted"]
    assert len(events) == len(schedule.transfers) * schedule.segments
    assert sum(e["args"]["bytes"] for e in events) == pytest.approx(2 * 7 * (1 << 24), rel=1e-3)
    refused = call_command("synth", *asked, "--trace", str(trace_file))
    assert refused.returncode == 2
    assert "--force" in refused.stderr


def test_the_last_event_ends_when_the_plan_says() -> None:
    for name, strategy in (("dgx1", "packing"), ("switch:4", "auto"), ("dgx-a100:2", "packing")):
        machine = preset(name)
        plan = synthesize(collective_on("allreduce", machine), machine, strategy).plan
        for size in (1 << 12, 1 << 22, 1 << 26):
            entry = plan.entry_for(size)
            events = read_trace(write_plan_trace(plan, size))["predicted"]
            last = max(e["ts"] + e["dur"] for e in events)
            assert last == pytest.approx(plan.time_s(entry, size) * 1e6, rel=1e-4, abs=0.01)


@given(st.integers(2, 6), st.integers(0, 26), st.sampled_from([1, 2, 3, 8]), st.booleans())
def test_predicted_times_agree_with_the_cost(
    ranks: int, bits: int, segments: int, stepwise: bool
) -> None:
    machine = preset(f"switch:{ranks}")
    ring = built("ring", f"switch:{ranks}")
    schedule = replace(ring, segments=segments, stepwise=stepwise and segments > 1)
    times = predict_times(schedule, machine, 1 << bits)
    assert len(times) == len(schedule.transfers) * segments
    assert all(0 <= t.begin_us <= t.end_us for t in times)
    cost = costs_between_gpus(schedule, machine, [segments])[0]
    assert max(t.end_us for t in times) == pytest.approx(cost.time_s(1 << bits) * 1e6)


@given(st.integers(8, 22), st.sampled_from([1, 2, 8]))
def test_messages_that_are_played_end_when_the_simulation_does(bits: int, segments: int) -> None:
    machine, host = preset("switch:4"), HostCosts()
    ring = built("ring", "switch:4")
    schedule = replace(reroute(ring, Router(machine)), segments=segments)
    times = predict_times(schedule, machine, 1 << bits, host)
    assert len(times) == len(schedule.transfers) * segments
    last = max(t.end_us for t in times)
    whole = time_us(schedule, machine, host, 1 << bits)
    # What is received last is still added, or copied, after it was noticed.
    assert last <= whole
    assert whole - last <= 4 * host.receive_us + 3 * (1 << bits) * host.add_ns * 1e-3 + whole * 0.5


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
