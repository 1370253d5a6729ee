"""Chrome traces, read and checked."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any


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
