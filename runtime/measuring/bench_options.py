"""Read and check the options of a benchmark as far as one rank can, before any rank is started.

Names of element types, reductions and codecs are taken as torch and nccl-tests write them.

torch is imported only to check options that differ from the defaults, so that ordinary runs start
their ranks without delay.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ...extras import CODECS, Names
from ...synth.ir.collective import Collective
from ...topo.errors import InputError, suggest

if TYPE_CHECKING:
    from ...synth.plan import Plan
    from ..policy import Policy
    from .bench_data import BenchSettings

DTYPE_NAMES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
OP_NAMES = ("sum", "avg", "prod", "max", "min")
_OTHER_DTYPES = {
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
    "fp64": "float64",
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "char": "int8",
    "byte": "uint8",
    "int": "int32",
    "long": "int64",
}
_OTHER_OPS = {"mean": "avg", "average": "avg", "add": "sum", "product": "prod", "mul": "prod"}
_OTHER_CODECS = {
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "fp8-e4m3": "fp8",
    "float8-e4m3fn": "fp8",
    "float8-e5m2": "fp8-e5m2",
}


def spell_dtype(text: str) -> str:
    """Return topoplan's name of an element type: float32 for "float", bfloat16 for "torch.bf16".

    Raise InputError if it is none.
    """
    return _spell(
        "dtype",
        text.lower().removeprefix("torch.").removeprefix("nccl"),
        text,
        DTYPE_NAMES,
        _OTHER_DTYPES,
    )


def spell_op(text: str) -> str:
    """Return topoplan's name of a reduction, such as avg for "mean".

    Raise InputError if it is none.
    """
    return _spell("op", text.lower(), text, OP_NAMES, _OTHER_OPS)


def spell_codec(text: str) -> str:
    """Return topoplan's name of a codec (a compressed format), such as fp16 for "half".

    Raise InputError if it is none.
    """
    return _spell("compress", text.lower().replace("_", "-"), text, Names(CODECS), _OTHER_CODECS)


def _spell(
    parameter: str, plain: str, text: str, names: Iterable[str], others: dict[str, str]
) -> str:
    if plain in names:
        return plain
    if plain not in others:
        raise InputError(
            f"{parameter} {text}: is unknown{suggest(plain, [*names, *others])}; expected one of "
            f"{', '.join(names)}",
            parameter=parameter,
        )
    return others[plain]


@dataclass(frozen=True)
class BenchOptions:
    """What to measure, with the defaults of topo-run.

    Sizes are in bytes, from `min_bytes` to `max_bytes`, each `factor` times the one before;
    `iterations` timed calls follow `warmup` untimed ones. `op` is the reduction (sum, avg, ...),
    `backend` is gloo, nccl, mpi or auto. `timeout_s` limits a call. `place` is in, out or both
    (None: as torch has the collective). `choose` is how schedules are chosen (race, model, plan),
    `compress` a codec for messages, `reduction` where it rounds (hops, once), `executor` how
    schedules are carried out; `on_fault` and `on_slow` say what happens when a link is lost or
    slow.
    """

    min_bytes: int = 1 << 10
    max_bytes: int = 1 << 20
    factor: int = 4
    iterations: int = 10
    warmup: int = 2
    dtype: str = "float32"
    op: str = "sum"
    backend: str = "auto"
    choose: str = "race"
    compress: str | None = None
    reduction: str = "hops"
    timeout_s: float = 300.0
    # Where results go: "in" the input's place, "out" to another tensor, "both" one after the
    # other; None: as torch does.
    place: str | None = None
    collective: str = "allreduce"  # without a plan
    executor: str | None = None  # as for Communicator
    on_fault: str = "raise"  # as for Communicator
    on_slow: str = "warn"  # as for Communicator

    def __post_init__(self) -> None:
        if self.factor < 2:
            raise InputError(f"factor {self.factor}: expected at least 2", parameter="factor")
        if self.iterations < 1 or self.warmup < 0:
            raise InputError(
                f"{self.iterations} iterations after {self.warmup}: expected at least 1 iteration, "
                "and at least 0 before"
            )
        if not self.timeout_s > 0:
            raise InputError(
                f"timeout {self.timeout_s:g}: expected seconds above 0", parameter="timeout"
            )
        self.policy  # noqa: B018 - which checks the options that it has

    @property
    def policy(self) -> Policy:
        """The options for Communicator: how schedules are chosen and carried out."""
        from ..policy import make_policy  # helps of commands need no more than names

        return make_policy(
            None,
            choose=self.choose,
            timeout=timedelta(seconds=self.timeout_s),
            compress=self.compress,
            reduction=self.reduction,
            executor=self.executor,
            on_fault=self.on_fault,
            on_slow=self.on_slow,
        )

    def list_sizes(self) -> list[int]:
        """Return the sizes to measure: the bytes of the collective's buffer, the smallest first."""
        out = [self.min_bytes]
        while out[-1] * self.factor <= self.max_bytes:
            out.append(out[-1] * self.factor)
        return out

    def check(self, plan: Plan | None, ranks: int) -> None:
        """Raise InputError if these options do not fit the plan or this machine.

        `plan` is None if only the stock collective is measured; `ranks` is the number of ranks to
        start.
        """
        collective = self.collective_over(plan, ranks)
        default = BenchOptions()
        if self.choose == "same-bits" and plan is not None:
            plan.check_one_bracketing()
        if (self.dtype, self.op, self.place) != (default.dtype, default.op, default.place):
            self.settings_for(collective)
        if self.backend != default.backend:
            self.resolve_backend(ranks)

    def collective_over(self, plan: Plan | None, ranks: int) -> Collective:
        """Return the plan's collective, or without a plan the one named, rooted at rank 0.

        A plan's is that of its members alone, numbered from 0; without one, there are `ranks`
        ranks.
        """
        if plan is None:
            return Collective.with_default_root(self.collective, ranks)
        return plan.collective.among(plan.collective.members)

    def settings_for(self, collective: Collective) -> BenchSettings:
        """Return the benchmark's settings for a collective.

        Raise InputError if dtype and reduction do not fit each other.
        """
        from .bench_data import DTYPES, OPS, BenchSettings

        dtype, op = DTYPES[spell_dtype(self.dtype)], spell_op(self.op)
        if collective.reduces:
            from ..reductions import check_reduction

            check_reduction(OPS[op], dtype)
        return BenchSettings(collective, self, dtype, op)

    def resolve_backend(self, ranks: int) -> str:
        """Return the backend to use for `ranks` ranks: the one named, or what "auto" stands for.

        "auto" is mpi if TOPOPLAN_TRANSPORT says so, nccl if each of this host's ranks has a GPU,
        else gloo. Raise InputError for nccl without a GPU.
        """
        import torch

        if self.backend == "auto":
            from ..ranks.links import check_transport

            named = check_transport(None)
            if named != "auto":
                return named
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.backend == "nccl" and not gpus:
            raise InputError(
                "backend nccl: there is no CUDA GPU here; use gloo", parameter="backend"
            )
        if self.backend != "auto":
            return self.backend
        return "nccl" if gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks))) else "gloo"
