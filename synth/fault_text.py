"""The faults after which calls went on, by the rows of topo-run's JSON or a run's events.

A row is the JSON object of one fault, in the list `recoveries` of topo-run's JSON or in a line of
the file that TOPOPLAN_LOG_FILE names (runtime/event_log.py). If its `kind` is "lost", `lost_links`
lists the links by names such as "gpu0 - gpu1". Other kinds are of links that became slower or
faster: `links` maps the name of each to the fraction that is left of its first rate.
"""

from collections.abc import Mapping
from typing import Any

from .sizes import show_size

# The kind of fault that a lost link is; others are of slow links.
LOST = "lost"
# The format of a line of a run's file of events, and its two events: a fault was noticed, and all
# is known of how calls went on.
EVENT_FORMAT = "topoplan-event"
FAULT, RESUMED = "fault", "resumed"


def describe_fault(row: Mapping[str, Any]) -> str:
    """Return what has happened, by a row of the JSON: "link A - B was lost"."""
    if row["kind"] == LOST:
        lost = " and ".join(map(str, row["lost_links"]))
        return f"link {lost} was lost" if lost else "a connection was lost"
    links = [
        f"{link} {'recovered' if factor == 1 else f'is at {factor:g} of its rate'}"
        for link, factor in row["links"].items()
    ]
    return f"link {', '.join(links)}"


def describe_worth(row: Mapping[str, Any]) -> str:
    """Return what planning for slow links was worth, by a row about slow links, as text.

    The row has the times in seconds of a call of `size_bytes`: `before_s` before the links became
    slow (None: not known), `during_s` by the schedule that was in use, and `after_s` by the one
    chosen since (None: no schedule was tried yet).
    """
    if row["after_s"] is None:
        return "no schedule tried yet"
    before = "" if row["before_s"] is None else f"{row['before_s'] * 1e3:.4g} ms before, "
    return (
        f"{show_size(row['size_bytes'])} took {before}{row['during_s'] * 1e3:.4g} ms by the "
        f"schedule in use, {row['after_s'] * 1e3:.4g} ms since"
    )
