"""The declared fields of a plan's JSON.

Chunks and transfers are rows, so that large plans stay short. The reader refuses undeclared fields:
they would change the meaning of a plan. docs/files.md lists the fields reserved for later. Extras,
the optional features that extras.py at the root lists, declare more fields, the sections of plans
(section.py), and files that hold several plans, such as one for each of several groups of GPUs.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ..extras import PLANS, Names
from ..topo.errors import InputError
from ..topo.schema import Count, Index, Label
from .bounds.certificate import BoundFields, SinglePathBoundFields
from .ir.collective import CollectiveName, DemandName
from .ir.columns import MAX_COLUMN_BYTES
from .ir.demands import DemandRows
from .ir.schedule import MAX_STEPS, RANKS_ABOUT, Ranks, ScheduleFields, Segments

FORMAT = "topoplan-plan"
# Version 2 adds what version 1 cannot express: members that are not all GPUs, helpers, demands,
# some of the sections that extras add, and columns in place of rows for many ranks. A plan is
# written in the lowest version that can hold it.
VERSIONS = (1, 2)
# 512 MiB: bounds the memory that a file can demand; the largest plans written take tens of MiB.
MAX_PLAN_BYTES = 512 << 20
# Even if the schedule changed at every doubling of the size, 64 entries would be enough.
MAX_ENTRIES = 256
# Each alternative is a candidate of a race at run time; the synthesizer lists at most 16.
MAX_ALTERNATIVES = 256
# All schedules, with those of sections (section.py), such as plans for the loss of each link.
MAX_SCHEDULES = MAX_ENTRIES + MAX_ALTERNATIVES + 4096
# A plan names its format at its beginning; a topology in the same folder may be large.
HEAD_BYTES = 4096


class EntryFields(Struct, forbid_unknown_fields=True):
    """The schedule for buffers of at least `min_bytes` and less than `max_bytes`.

    If `max_bytes` is null, the range has no upper end.
    """

    min_bytes: Annotated[int, Meta(ge=0)]
    max_bytes: Annotated[int, Meta(ge=1)] | None
    schedule: Annotated[Index, Meta(description="place in `schedules`")]
    segments: Segments
    stepwise: bool = False


class PlanFile(Struct, forbid_unknown_fields=True):
    """A schedule for each range of sizes, the topology and the bound; `hash` covers the rest."""

    format: Literal["topoplan-plan"]
    version: Literal[1, 2]
    fingerprint: Label
    collective: Literal[CollectiveName, DemandName]
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
    members: Ranks = []
    demands: Annotated[
        DemandRows | UnsetType,
        Meta(
            description="the pieces of alltoallv and reshard: size, ranks that have it, ranks that "
            "need it"
        ),
    ] = UNSET
    helpers: Annotated[
        list[Index] | UnsetType,
        Meta(description=f"{RANKS_ABOUT}: those that may help the members; absent: all others"),
    ] = UNSET
    bound_alone: Annotated[
        SinglePathBoundFields | UnsetType | None,
        Meta(description="for the members without help; null: they cannot reach each other"),
    ] = UNSET
    bound_with_helpers: Annotated[
        SinglePathBoundFields | UnsetType,
        Meta(
            description="as bound_one_way, if all other GPUs helped; absent: bound_one_way is "
            "with the helpers"
        ),
    ] = UNSET
    reduction_order: Label = ""
    dtypes: Label = ""
    hash: Annotated[Label, Meta(description="SHA-256 of the rest in canonical form, in hex")] = ""


def find_format(head: bytes) -> str | None:
    """Return the format of plans that a file's first HEAD_BYTES name; None if it is no plan.

    It is FORMAT, or that of an extra's file with several plans. Those are looked for first, as such
    a file may hold plans of format FORMAT.
    """
    known = (*Names(PLANS).list_all(), FORMAT)
    return next((name for name in known if f'"{name}"'.encode() in head), None)


class PlanHead(Struct):
    """The fields that identify the collective of a plan; the rest of the file is not read.

    No `members` means that all GPUs are.
    """

    collective: Literal[CollectiveName, DemandName]
    ranks: Count
    root: Index | None
    members: list[Index] = []


def check_counts(data: Mapping[str, Any], where: str) -> None:
    """Raise InputError if a plan's JSON lists more than a plan may hold.

    This check is quick, so it precedes the hash and the verification, which take long.
    """
    limits = {
        "entries": MAX_ENTRIES,
        "alternatives": MAX_ALTERNATIVES,
        "schedules": MAX_SCHEDULES,
    }
    listed = [(name, data.get(name), most) for name, most in limits.items()]
    schedules = data.get("schedules")
    listed += [
        (f"schedules[{number}].step_s_per_GB", row.get("step_s_per_GB"), MAX_STEPS)
        for number, row in enumerate(schedules if isinstance(schedules, list) else ())
        if isinstance(row, dict)
    ]
    for name, rows, most in listed:
        if isinstance(rows, list) and len(rows) > most:
            raise InputError(
                f"{where}: {name}: expected at most {most}, got {len(rows)}; "
                "not a plan that topo-synth wrote, so make it again"
            )


def check_columns(schedules: Sequence[ScheduleFields], where: str) -> None:
    """Raise InputError if the columns of all schedules together need too much memory."""
    columns = [fields.columns for fields in schedules if fields.columns is not UNSET]
    if sum(c.memory_bytes for c in columns) > MAX_COLUMN_BYTES:
        raise InputError(
            f"{where}: schedules: their columns take more than {MAX_COLUMN_BYTES >> 20} MiB; "
            "not a plan that topo-synth wrote, so make it again"
        )
