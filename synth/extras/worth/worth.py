"""Is a plan worth it: what stock NCCL or RCCL reaches by a model, what the plan does, what to use.

Stock is what the library does by itself, without a plan or a graph file. Both figures are of the
same cost model at the topology's rates, for the same size. The advice is to keep the stock library
unless the plan is faster on links whose rates are known; a file for the stock library if one gains
as much, since no code changes for it; else the hook or the backend.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ....topo.errors import InfeasibleError, InputError, TimeLimitError
from ...bounds.assumptions import join_assumptions, list_assumptions
from ...bounds.in_network import list_possible
from ...numeric.effort import Effort
from ...remark import Remark
from ...sizes import show_size
from ..stock.on_paper import RING_SHARES
from ..stock.stock_ring import stock_of

if TYPE_CHECKING:
    from ...plan import Plan

KEEP, FILE, HOOK, BACKEND = "keep", "file", "hook", "backend"
# Smallest speedup worth changing anything for, as in the judge's offers.
MIN_GAIN = 1.05
# Share of the plan's rate from which a file is as good: it needs no change of code.
_AS_GOOD = 0.95
# Work for the search for a file, in seconds of an idle core: advice must not depend on how busy the
# machine is, and the clock of 60 s ends no search of this size that was seen (7.5 s at most). With
# more GPUs than this none is searched.
_FILE_WORK_s, _MAX_FILE_RANKS = 5.0, 16
# A size is compared if both sides reach this share of their rates at _LARGE_bytes there: below it
# latency decides, which no model here has been held against several GPUs for.
_FILLED, _LARGE_bytes = 0.5, 1 << 34
NEVER_TIMED = "never timed on several GPUs"


@dataclass(frozen=True)
class Worth:
    """A plan beside the stock library, for a buffer of `size_bytes`; rates are algbw in GB/s.

    `advice` is KEEP (the stock library), FILE (a graph file for it), HOOK (the DDP hook) or BACKEND
    (the backend "topo"). `stock_basis` says what the stock figure is. With `is_limit` stock reaches
    that or less, so the `ratio` of the plan to it is the least one. The figures and `advice` are
    None if they are not known, and `reason` says why. `condition` names rates that both figures
    depend on and nothing states, as in " if PCIe links have 12 GB/s"; `assumes` has what such a
    limit assumes.
    """

    size_bytes: int
    plan_GBps: float
    stock_name: str = ""
    stock_GBps: float | None = None
    stock_basis: str | None = None
    ratio: float | None = None
    advice: str | None = None
    reason: str | None = None
    is_limit: bool = False
    condition: str = ""
    assumes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the field `worth` of topo-synth's JSON."""
        fields = asdict(self)
        keys = ("stock_GBps", "stock_basis", "plan_GBps", "ratio", "advice", "reason")
        return {key: fields[key] for key in keys}

    @property
    def verdict(self) -> str:
        """What to use, in words."""
        keep = f"keep {self.stock_name.removeprefix('stock ').removesuffix(' at best') or 'NCCL'}"
        return {
            KEEP: keep,
            FILE: "use a graph file (--format nccl-graph): no code changes",
            HOOK: "use the DDP hook, or the backend",
            BACKEND: 'use the backend, init_process_group("topo")',
            None: f"no advice: {self.reason}",
        }[self.advice]

    @property
    def line(self) -> str:
        """The whole in a line."""
        if self.advice == KEEP and self.stock_GBps is None:
            return f"{self.verdict}: {self.reason}"
        if self.stock_GBps is None or self.ratio is None:
            return f"what the plan gains over stock is not known: {self.reason}"
        most = "at most " * self.is_limit
        least = "at least " * self.is_limit
        return (
            f"{self.stock_name} by a model: {most}{self.stock_GBps:.4g} GB/s; this plan: "
            f"{least}{self.ratio:.2f}x at {show_size(self.size_bytes)}{self.condition} "
            f"({NEVER_TIMED}); {self.verdict}"
        )


def find_worth(plan: Plan, size_bytes: int) -> Worth:
    """Return what a plan is worth for a buffer of `size_bytes`, beside the stock library."""
    rate = _predict_GBps(plan, size_bytes)
    if adding := _describe_adding(plan):
        return Worth(size_bytes, rate, advice=KEEP, reason=adding)
    stock = stock_of(plan)
    if stock is None or not stock.is_modelled:
        no_ring = f"{plan.collective.name} uses no rings or trees"
        why = no_ring if stock is None else stock.reason
        return Worth(size_bytes, rate, reason=f"stock is not modelled here: {why}")
    stock_GBps = stock.algbw_GBps(size_bytes)
    large_GBps = stock.algbw_GBps(_LARGE_bytes), _predict_GBps(plan, _LARGE_bytes)
    if stock_GBps < _FILLED * large_GBps[0] or rate < _FILLED * large_GBps[1]:
        why = (
            f"at {show_size(size_bytes)} latency decides, and no model of it was held against "
            "several GPUs; ask for a larger size (docs/judge.md has published small calls)"
        )
        return Worth(size_bytes, rate, stock.name.removesuffix(" at best"), reason=why)
    ratio = rate / stock_GBps if stock_GBps else None
    bounds = (plan.bound_one_way, plan.bound)
    assumed = {x: None for bound in bounds for x in list_assumptions(bound, plan.topology)}
    guesses = [each for each in assumed if each.is_guess]
    known = Worth(
        size_bytes,
        rate,
        stock.name.removesuffix(" at best"),
        stock_GBps,
        stock.what,
        ratio,
        is_limit=stock.is_limit,
        condition=join_assumptions(list(assumed)),
        assumes=stock.assumes,
    )
    return _advise(known, plan, bool(guesses))


def _describe_adding(plan: Plan) -> str:
    """Return why stock may be above its rings and trees: NVSwitches that add. "" without any.

    Switches of a network that could add (SHARP) are not counted: few jobs can use them.
    """
    adding = [x for x in list_possible(plan.topology) if x.family == "nvswitch"]
    if not adding or plan.collective.name not in RING_SHARES:
        return ""
    return (
        "its NVSwitches can add and copy, which NCCL may use (NVLS) and the model of its rings and "
        "trees does not count"
    )


def _predict_GBps(plan: Plan, size_bytes: int) -> float:
    """Return the algbw in GB/s that a plan is predicted to reach for a buffer."""
    time_s = plan.time_s(plan.entry_for(size_bytes), size_bytes)
    return size_bytes / time_s / 1e9 if time_s else 0.0


def _advise(worth: Worth, plan: Plan, is_conditional: bool) -> Worth:
    """Return `worth` with its advice; with rates that nothing states there is none but to keep."""
    if worth.ratio is None or worth.ratio < MIN_GAIN:
        return replace(worth, advice=KEEP)
    if is_conditional:
        reason = "it rests on rates that nothing states; measure them (topo-probe --measure) or "
        return replace(worth, reason=f"{reason}state them if you know them (--rate)")
    file_GBps = _rate_file(plan)
    if file_GBps is not None and file_GBps >= worth.plan_GBps * _AS_GOOD:
        return replace(worth, advice=FILE)
    return replace(worth, advice=HOOK if plan.collective.name == "allreduce" else BACKEND)


def _rate_file(plan: Plan) -> float | None:
    """Return the algbw in GB/s of a file for the stock library, None if none is worth writing."""
    from ..nccl_files.export import NCCL_GRAPH, export

    collective = plan.collective
    if not collective.has_all_gpus or collective.ranks > _MAX_FILE_RANKS:
        return None
    try:
        file = export(NCCL_GRAPH, collective, plan.router, Effort().grant(_FILE_WORK_s))
    except (InfeasibleError, InputError, TimeLimitError):
        return None
    return None if file.reason else max(file.figures["algbw_GBps"].values())


def remark(plan: Plan, size_bytes: int) -> Remark:
    """Return the remark on what a plan is worth, for the group `remarks` of extras."""
    worth = find_worth(plan, size_bytes)
    return Remark(worth.line, worth.to_json())
