"""Append faults, and how calls went on, to the file of JSON lines that TOPOPLAN_LOG_FILE names."""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..synth.fault_text import EVENT_FORMAT
from .environment import LOG_FILE, read

log = logging.getLogger("topoplan")


def log_event(event: str, row: Mapping[str, Any], group: str, plan_hash: str | None) -> None:
    """Append a line about a fault of a group's links, if a file is named for such lines.

    `event` is FAULT or RESUMED (synth/fault_text.py), `row` what is known of it as in
    Communicator.recoveries, `plan_hash` that of the plan in use before, None without one. The line
    has the Unix time, too. A file that cannot be written costs a warning, and not the job.
    """
    path = read(LOG_FILE)
    if path is None:
        return
    line = {
        "format": EVENT_FORMAT,
        "version": 1,
        "event": event,
        "time": round(time.time(), 3),
        "group": group,
        "plan_hash": plan_hash,
        **row,
    }
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        log.warning("%s=%s cannot be written: %s", LOG_FILE, path, error.strerror)
