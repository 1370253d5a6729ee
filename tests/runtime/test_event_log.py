"""The file of JSON lines about a run's faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topoplan.runtime.event_log import log_event


def test_events_are_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    monkeypatch.delenv("TOPOPLAN_LOG_FILE", raising=False)
    log_event("fault", {"kind": "lost", "at": 1.5}, "0", None)
    monkeypatch.setenv("TOPOPLAN_LOG_FILE", str(path))
    log_event("fault", {"kind": "lost", "at": 1.5}, "0", None)
    log_event("resumed", {"kind": "lost", "at": 1.5, "seconds": 0.5}, "0", "abc")
    lines = list(map(json.loads, path.read_text().splitlines()))
    assert [(x["event"], x["plan_hash"], x["at"]) for x in lines] == [
        ("fault", None, 1.5),
        ("resumed", "abc", 1.5),
    ]
    assert all(x["format"] == "topoplan-event" and x["time"] > 0 for x in lines)


def test_a_file_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOPOPLAN_LOG_FILE", str(tmp_path))
    log_event("fault", {"kind": "lost", "at": 1.5}, "0", None)
    assert "cannot be written: Is a directory" in caplog.text
