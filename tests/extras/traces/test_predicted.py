"""Traces: as many events as transfers and segments, no two of a thread at once, and the time that
was predicted.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from called import call_command
from hypothesis import given
from hypothesis import strategies as st
from planned import synthesize
from sample_schedules import built
from trace_reader import read_trace

from topoplan.synth.cost.affine import costs_between_gpus
from topoplan.synth.cost.host_costs import HostCosts
from topoplan.synth.cost.segmentation import reroute, time_us
from topoplan.synth.cost.transfer_times import predict_times
from topoplan.synth.extras.traces.chrome_trace import write_plan_trace
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.plan import Plan
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router


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
