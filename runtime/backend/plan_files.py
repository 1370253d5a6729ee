"""Plans in files that the user named.

A plan is for the ranks of a group, or for some GPUs of a larger machine (its members), which other
GPUs (helpers) may help by passing on data.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...extras import PLANS, Names
from ...synth.ir.collective import Collective
from ...synth.plan import Plan
from ...synth.plan_file import FORMAT, HEAD_BYTES, MAX_PLAN_BYTES, PlanHead, find_format
from ...synth.plan_text import read_text
from ...topo.errors import InputError, PlanMismatchError
from ...topo.files import read_file, read_start
from ...topo.schema import CONVERTING
from .plan_sets import PlanSet, PlanSetFormat

log = logging.getLogger("topoplan")


@dataclass(frozen=True)
class PlanEntry:
    """A plan, or the file that has it, with what the file's head says of it.

    `collective` is its name, `ranks` the number of ranks, `members` those that take part (empty:
    all), `root` the root's number, if any. A file of several plans has another `form` (format name)
    than FORMAT; `place` is then the plan's index in it.
    """

    collective: str
    ranks: int
    members: tuple[int, ...]
    root: int | None
    plan: Plan | Path
    form: str = FORMAT
    place: int = 0


class PlanFiles:
    """The plans that the user named: files, folders of files, or plans in memory.

    Of a file only the head is read; the plan is read in full and verified when `find` returns it.
    """

    def __init__(self, plans: Sequence[str | Path | Plan]) -> None:
        self.entries = [entry for plan in plans for entry in _list_plans(plan)]
        self.sets: dict[Path, PlanSet] = {}
        """The plans of each file of several that was read, a PlanSet."""

    def find(self, wanted: Collective, *, strict: bool, ranks: Sequence[int] = ()) -> Plan | None:
        """Return the verified plan for the collective `wanted`, or None if there is none.

        A collective of all ranks of a group, which have the numbers `ranks` in the launch, may also
        have a plan for these GPUs of a whole machine, if it needs no helpers: it has precedence.
        Raise PlanMismatchError, if `strict`, when all plans for the collective are for other
        numbers of ranks, InputError if two plans fit, VerificationError if the plan is wrong.
        """
        own = self.find_among(wanted, ranks) if ranks and wanted.has_all_gpus else None
        if own is not None:
            return own
        members = _list_members(wanted)
        entries = [
            entry
            for entry in self.entries
            if entry.collective == wanted.name and entry.members == members
        ]
        fitting = [entry for entry in entries if entry.ranks == wanted.ranks]
        if entries and not fitting and strict:
            numbers = " and ".join(map(str, sorted({entry.ranks for entry in entries})))
            raise PlanMismatchError(
                f"the plan for {wanted.name} is for {numbers} ranks, the group has {wanted.ranks}; "
                "start as many ranks, or synthesize a plan for this number"
            )
        exact = [entry for entry in fitting if entry.root == wanted.root]
        # In a file of several plans some may be for the same members.
        if len({entry.plan for entry in exact}) > 1:
            names = ", ".join(str(entry.plan) for entry in exact if isinstance(entry.plan, Path))
            raise InputError(
                f"there are {len(exact)} plans for {wanted.name} over {wanted.ranks} ranks "
                f"({names}); leave one"
            )
        return self.load(exact[0]) if exact else None

    def has_members(self, gpus: Sequence[int]) -> bool:
        """Return whether some plan is for exactly these GPUs (rank numbers) of a whole machine."""
        return any(entry.members == tuple(gpus) for entry in self.entries)

    def find_among(self, wanted: Collective, ranks: Sequence[int]) -> Plan | None:
        """Return the plan for the GPUs `ranks` of a whole machine, None without one.

        A plan that needs helpers does not count. The root of `wanted` is a place in `ranks`. Raise
        VerificationError if the plan is wrong.
        """
        root = None if wanted.root is None else ranks[wanted.root]
        for entry in self.entries:
            if (entry.collective, entry.members, entry.root) == (wanted.name, tuple(ranks), root):
                plan = self.load(entry)
                if not plan.used_helpers:
                    return plan
                log.warning(
                    "%s over ranks %s: its plan has helpers, which torch's own groups lack; make "
                    "the group by topoplan.new_group, or plan without helpers",
                    wanted.name,
                    list(ranks),
                )
        return None

    def load(self, entry: PlanEntry) -> Plan:
        """Return an entry's plan, read and verified; raise VerificationError if it is wrong."""
        if isinstance(entry.plan, Plan):
            return entry.plan
        if entry.form == FORMAT:
            return Plan.load(entry.plan)
        if entry.plan not in self.sets:
            text = read_text(entry.plan)
            self.sets[entry.plan] = find_set_format(entry.form).loads(text, str(entry.plan))
        return self.sets[entry.plan].plans[entry.place]


def is_plan_file(path: Path) -> bool:
    """Return whether a file's first characters are those of a plan; the rest is not read."""
    return find_format(read_start(path, HEAD_BYTES)) is not None


def find_set_format(form: str) -> PlanSetFormat:
    """Return the format for files of several plans that is named `form`.

    Raise InputError if nothing that is installed reads it.
    """
    found: PlanSetFormat = Names(PLANS).find(form)
    return found


def _list_plans(plan: str | Path | Plan) -> list[PlanEntry]:
    if isinstance(plan, Plan):
        of = plan.collective
        return [PlanEntry(of.name, of.ranks, _list_members(of), of.root, plan)]
    path = Path(plan)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; expected plans written by topo-synth -o")
    if not path.is_dir():
        return _read_heads(path)
    files = filter(is_plan_file, sorted(path.glob("*.json")))
    entries = [entry for file in files for entry in _read_heads(file)]
    if not entries:
        raise InputError(
            f"{path}: there is no plan in this folder; expected .json files written by topo-synth "
            "-o"
        )
    return entries


def _read_heads(path: Path) -> list[PlanEntry]:
    """Read the collectives of a file's plan, or plans, without verifying them."""
    try:
        data = read_file(path, MAX_PLAN_BYTES + 1)
        if len(data) > MAX_PLAN_BYTES:
            raise InputError(f"{path}: larger than {MAX_PLAN_BYTES >> 20} MiB; not a plan")
        with CONVERTING:
            form = find_format(data[:HEAD_BYTES]) or FORMAT
            if form == FORMAT:
                heads = [msgspec.json.decode(data, type=PlanHead)]
            else:
                heads = find_set_format(form).read_heads(data)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError(
            f"{path}: not a plan, or damaged; expected a file written by topo-synth -o"
        ) from None
    return [
        PlanEntry(head.collective, head.ranks, tuple(head.members), head.root, path, form, place)
        for place, head in enumerate(heads)
    ]


def _list_members(collective: Collective) -> tuple[int, ...]:
    """Return the members of a collective; none if it is over all GPUs."""
    return () if collective.has_all_gpus else tuple(collective.members)
