"""The JSON of a plan: its declared fields. Chunks and transfers are rows, so that large plans stay
short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ..topo.errors import InputError
from ..topo.schema import Count, Index, Label
from .bounds.certificate import BoundFields, SinglePathBoundFields
from .ir.collective import CollectiveName
from .ir.schedule import MAX_STEPS, ScheduleFields, Segments

FORMAT = "topoplan-plan"
VERSION = 1
MAX_PLAN_BYTES = 512 << 20
# Sizes double from one entry to the next where they change most often, so 64 would do.
MAX_ENTRIES = 256

# Each is a candidate of a race; the synthesizer lists some 10.
MAX_ALTERNATIVES = 256

MAX_SCHEDULES = MAX_ENTRIES + MAX_ALTERNATIVES


class EntryFields(Struct):
    """The schedule for buffers of at least `min_bytes` and less than `max_bytes` (null: no upper
    end).
    """

    min_bytes: Annotated[int, Meta(ge=0)]
    max_bytes: Annotated[int, Meta(ge=1)] | None
    schedule: Annotated[Index, Meta(description="place in `schedules`")]
    segments: Segments
    stepwise: bool = False


class ReproducibleFields(Struct):
    """What a reproducible plan promises: all its schedules add every element up in one bracketing
    of ranks.
    """

    bracketing: Annotated[
        Label,
        Meta(
            description='such as "((0+1)+(2+3))"; of two operands that with the lowest rank comes '
            "first"
        ),
    ]


class PlanFile(Struct):
    """For each range of sizes a schedule, with the topology and the bound; `hash` is over all the
    rest.
    """

    format: Literal["topoplan-plan"]
    version: Literal[1]
    fingerprint: Label
    collective: CollectiveName
    ranks: Count
    root: Index | None
    bound: Annotated[BoundFields, Meta(description="for any use of the links")]
    entries: Annotated[list[EntryFields], Meta(min_length=1, max_length=MAX_ENTRIES)]
    schedules: Annotated[list[ScheduleFields], Meta(min_length=1, max_length=MAX_SCHEDULES)]
    topology: Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "topology.schema.json"})]
    bound_one_way: Annotated[
        SinglePathBoundFields | UnsetType,
        Meta(
            description="for schedules that keep to the system's own routes; absent in older "
            "files: as bound"
        ),
    ] = UNSET
    alternatives: Annotated[
        list[Index], Meta(max_length=MAX_ALTERNATIVES, description="places in `schedules`")
    ] = []
    reproducible: Annotated[
        ReproducibleFields | UnsetType,
        Meta(description="absent where an element's bits depend on its place in the buffer"),
    ] = UNSET
    reduction_order: Label = ""
    dtypes: Label = ""
    hash: Annotated[Label, Meta(description="SHA-256 of the rest in canonical form, in hex")] = ""


class PlanHead(Struct):
    """What a plan says that it is for."""

    collective: CollectiveName
    ranks: Count
    root: Index | None


def check_counts(data: Mapping[str, Any], where: str) -> None:
    """Raise InputError where a plan's JSON lists more than a plan may hold.

    This needs no time, so it comes before the hash and the verification, which need much of it.
    """
    listed = [
        ("entries", data.get("entries"), MAX_ENTRIES),
        ("alternatives", data.get("alternatives"), MAX_ALTERNATIVES),
        ("schedules", data.get("schedules"), MAX_SCHEDULES),
    ]
    schedules = data.get("schedules")
    for number, row in enumerate(schedules if isinstance(schedules, list) else ()):
        if isinstance(row, dict):
            steps = row.get("step_s_per_GB")
            listed.append((f"schedules[{number}].step_s_per_GB", steps, MAX_STEPS))
    for name, rows, most in listed:
        if isinstance(rows, list) and len(rows) > most:
            raise InputError(
                f"{where}: {name}: expected at most {most}, got {len(rows)}; "
                "not a plan that topo-synth wrote, so make it again"
            )
