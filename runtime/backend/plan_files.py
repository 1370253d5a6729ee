"""Find plans among those that the user named: files, folders, and plans in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...synth.ir.collective import Collective
from ...synth.plan import Plan
from ...synth.plan_file import FORMAT, MAX_PLAN_BYTES, PlanHead
from ...topo.errors import InputError, PlanMismatchError
from ...topo.schema import CONVERTING

# A plan names its format at its beginning; a topology beside it may be large.
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class _PlanEntry:
    """A plan, or its file, with the collective, number of ranks and root that it is for."""

    collective: str
    ranks: int
    root: int | None
    plan: Plan | Path


class PlanFiles:
    """The plans that the user named. A file is read in full, and verified, only when `find` returns
    its plan.
    """

    def __init__(self, plans: Sequence[str | Path | Plan]) -> None:
        self.entries = [entry for plan in plans for entry in _list_plans(plan)]

    def find(self, wanted: Collective, *, strict: bool) -> Plan | None:
        """Return the plan for a collective, or None where there is none.

        Raises PlanMismatchError, if `strict`, where all plans for the collective are for other
        numbers of ranks, InputError where two plans fit, VerificationError where the plan is wrong.
        """
        entries = [entry for entry in self.entries if entry.collective == wanted.name]
        fitting = [entry for entry in entries if entry.ranks == wanted.ranks]
        if entries and not fitting and strict:
            numbers = " and ".join(map(str, sorted({entry.ranks for entry in entries})))
            raise PlanMismatchError(
                f"the plan for {wanted.name} is for {numbers} ranks, the group has {wanted.ranks}; "
                "start as many ranks, or synthesize a plan for this number"
            )
        exact = [entry for entry in fitting if entry.root == wanted.root]
        if len(exact) > 1:
            names = ", ".join(str(entry.plan) for entry in exact if isinstance(entry.plan, Path))
            raise InputError(
                f"there are {len(exact)} plans for {wanted.name} over {wanted.ranks} ranks "
                f"({names}); leave one"
            )
        if not exact:
            return None
        plan = exact[0].plan
        return plan if isinstance(plan, Plan) else Plan.load(plan)


def is_plan_file(path: Path) -> bool:
    """Return whether a file begins like a plan."""
    try:
        with path.open("rb") as file:
            return f'"{FORMAT}"'.encode() in file.read(_HEAD_BYTES)
    except OSError:
        return False


def _list_plans(plan: str | Path | Plan) -> list[_PlanEntry]:
    if isinstance(plan, Plan):
        return [_PlanEntry(plan.collective.name, plan.collective.ranks, plan.collective.root, plan)]
    path = Path(plan)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; expected plans written by topo-synth -o")
    if not path.is_dir():
        return [_read_head(path)]
    entries = [_read_head(file) for file in sorted(path.glob("*.json")) if is_plan_file(file)]
    if not entries:
        raise InputError(
            f"{path}: there is no plan in this folder; expected .json files written by topo-synth "
            "-o"
        )
    return entries


def _read_head(path: Path) -> _PlanEntry:
    """Read what a file's plan is for, without verifying it."""
    try:
        if path.stat().st_size > MAX_PLAN_BYTES:
            raise InputError(f"{path}: larger than {MAX_PLAN_BYTES >> 20} MiB; not a plan")
        text = path.read_bytes()
        with CONVERTING:
            head = msgspec.json.decode(text, type=PlanHead)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError(
            f"{path}: not a plan, or damaged; expected a file written by topo-synth -o"
        ) from None
    return _PlanEntry(head.collective, head.ranks, head.root, path)
