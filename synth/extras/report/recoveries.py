"""Read the faults in a run, and how it went on after them, and write them as HTML.

A recovery is what happened from noticing a lost or slow link until calls went on. Recoveries are in
the JSON of topo-run, or in the lines of JSON that any program writes to the file that
TOPOPLAN_LOG_FILE names (runtime/event_log.py).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ....topo.errors import InputError
from ....topo.exact import load_json
from ....topo.files import read_file
from ...fault_text import EVENT_FORMAT, FAULT, LOST, RESUMED, describe_fault, describe_worth
from ...plan import Plan
from ...sizes import show_size
from ..traces.timeline import MAX_ROWS
from .fault_picture import draw_faults
from .html import make_figure, make_paragraph, make_section, make_table

# Most recoveries to list; a longer run is no rehearsal.
_MAX_LISTED = 200


@dataclass(frozen=True)
class RecoveryRow:
    """A fault noticed `at_s` seconds into a run, which went on `seconds` later, None if it did not.

    `what` names the lost or slow links; `resent_bytes` were sent again; `worth` says what another
    plan gained for slow links; `bound_GBps` is the bound on algbw of what was left, None if no plan
    was needed.
    """

    at_s: float
    what: str
    seconds: float | None
    resent_bytes: int
    worth: str
    bound_GBps: float | None


def read_recoveries(path: str, plan: Plan) -> list[RecoveryRow]:
    """Return the recoveries of this plan in the file `path`, topo-run's JSON or events of a run.

    Raise InputError if the file is something else, or of another plan.
    """
    try:
        text = read_file(path)
        events = [*_list_events(text)]
        run = None if events else load_json(text, exact=False)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {reason}") from None
    if events:
        return _read_events(events, path, plan)
    if not isinstance(run, dict) or run.get("format") != "topoplan-run" or "recoveries" not in run:
        raise InputError(
            f"{path}: expected the JSON of a run of topo-run that goes on after faults, with its "
            "recoveries, or a file that TOPOPLAN_LOG_FILE named"
        )
    if run.get("plan_hash") != plan.hash:
        raise InputError(f"{path}: is the run of another plan; expected one of {plan.hash[:16]}")
    try:
        return [_read_row(row) for row in run["recoveries"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: a damaged list of recoveries: {error!r}") from None


def _list_events(text: bytes) -> Iterator[dict[str, Any]]:
    """Yield the lines of a text that are events; a run that was killed may have cut the last."""
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("format") == EVENT_FORMAT:
            yield event


def _read_events(events: Sequence[dict[str, Any]], path: str, plan: Plan) -> list[RecoveryRow]:
    """Return a row for each fault of this plan, by the last event about it."""
    own = [x for x in events if x.get("plan_hash") in (plan.hash, None)]
    if not own:
        raise InputError(f"{path}: has the faults of other plans; expected {plan.hash[:16]}")
    try:
        last = {(x["group"], x["kind"], x["at"]): x for x in own}
        rows = [
            _read_row(x)
            if x["event"] == RESUMED or x["kind"] != LOST
            else RecoveryRow(float(x["at"]), "a connection was lost", None, 0, "", None)
            for x in last.values()
            if x["event"] in (FAULT, RESUMED)
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: a damaged event: {error!r}") from None
    return sorted(rows, key=lambda row: row.at_s)


def _read_row(row: dict[str, Any]) -> RecoveryRow:
    is_lost, bound = row["kind"] == LOST, row["bound_GBps"]
    return RecoveryRow(
        float(row["at"]),
        describe_fault(row),
        float(row["seconds"]),
        int(row["resent_bytes"]) if is_lost else 0,
        "" if is_lost else describe_worth(row),
        None if bound is None else float(bound),
    )


def write_recoveries(recoveries: Sequence[RecoveryRow]) -> str:
    """Return the HTML section with a timeline and a table of recoveries."""
    if not recoveries:
        none = make_paragraph("No link was lost or slow in this run.")
        return make_section("recoveries", "Recoveries", none)
    title = "from noticing each fault to going on"
    rows = [
        (
            f"{x.at_s:.2f}",
            x.what,
            "never" if x.seconds is None else f"{x.seconds:.2f}",
            show_size(x.resent_bytes),
            x.worth,
            "-" if x.bound_GBps is None else f"{x.bound_GBps:.4g}",
        )
        for x in recoveries[:_MAX_LISTED]
    ]
    titles = (
        "noticed at (s)",
        "fault",
        "went on after (s)",
        "sent again",
        "a call",
        "bound left (GB/s)",
    )
    more = len(recoveries) - len(rows)
    caption = f"{title}; times since the communicator was made"
    drawn = f"; the first {MAX_ROWS} of {len(recoveries)}" if len(recoveries) > MAX_ROWS else ""
    return make_section(
        "recoveries",
        "Recoveries",
        make_figure(draw_faults(title, recoveries[:MAX_ROWS]), f"{caption}{drawn}", "curve"),
        make_table(titles, rows, right=(0, 2, 3, 5)),
        make_paragraph(f"and {more} more", soft=True) if more > 0 else "",
    )
