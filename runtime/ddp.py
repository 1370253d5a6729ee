"""The DDP hook: model.register_comm_hook(None, topoplan.ddp_hook(plan, compress="int8", ...)).

A plan holds schedules of an allreduce; a Policy has the options of how it is carried out.

No postponed annotations here: DDP compares the annotations of a hook with the types themselves.
"""

import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from ..extras import FEEDBACK, Names
from ..synth.plan import Plan
from ..topo.errors import InputError
from .backend import NAME
from .backend.options import OFF, are_plans_off, backend_options, bits_without_plans
from .backend.registration import register
from .backend.torch_tools import show_as
from .communicator import Communicator
from .environment import PLANS, heed_log_level
from .option_names import ON_SLOWS
from .policy import DEFAULT_TIMEOUT, ChooseMode, Policy, make_policy
from .queues import ThreadQueue, make_queue, start
from .ranks.groups import make_group_maker
from .usage_log import CountedGroup, GroupUsage, Summary, find_usage_log
from .works import Failed, PlannedWork, tensors_or_raise


def ddp_hook(  # noqa: PLR0913 (what users set)
    plan: Plan | str | Path | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
    choose: ChooseMode = "race",
    compress: str | None = None,
    error_feedback: bool = False,
    reduction: str = "hops",
    executor: str | None = None,
    on_fault: str | None = None,
    on_slow: str = ON_SLOWS[0],
    *,
    policy: Policy | None = None,
) -> "DdpHook":
    """Return a communication hook that averages gradients by an allreduce plan.

    `plan` holds schedules of an allreduce, or is the file that has them. Without a plan a group of
    the backend "topo" over the same ranks averages, which finds plans as that backend does: until
    there is one, gloo or NCCL make the calls themselves.

    `timeout` limits a call, `choose` says how the schedule for a size is chosen (race, model, plan,
    same-bits or a function), `compress` names a codec for messages (fp16, int8, ...), `reduction`
    where it rounds (hops, once), `executor` how schedules are carried out, `on_fault` and `on_slow`
    what happens when a link is lost or slow; `policy` has all these at once. Communicator explains
    them.

    Making the hook is collective over the ranks of `group` (default: all) alone; before
    init_process_group it is not: then the ranks meet at the first bucket. Buckets are handled in
    the order in which DDP passes them, while backward goes on: by a thread on CPUs, on a separate
    stream on GPUs. All ranks end with the same bits: plans whose schedules do not ensure that are
    refused. With `compress` gradients are sent in another format, and `error_feedback` adds the
    rounding errors to the next step's gradients (four bytes per parameter). The hook's
    `communicator` has the choice for each size, and the bytes sent. DDP leaves the division to its
    hook, and this one divides by the number of ranks: join() with
    divide_by_initial_world_size=False changes nothing. With TOPOPLAN_PLANS=off the hook averages as
    DDP does without one, and the plan is not read. Raise InputError if an option is invalid,
    PlanMismatchError if the plan is for other ranks.
    """
    policy = make_policy(
        policy,
        timeout=timeout,
        choose=choose,
        compress=compress,
        reduction=reduction,
        executor=executor,
        on_fault=on_fault,
        on_slow=on_slow,
    )
    if plan is not None:
        return DdpHook(plan, group, policy, error_feedback=error_feedback)
    if error_feedback:
        raise InputError("error_feedback without a plan: the backend keeps none; name a plan")
    return PlanlessHook(group, policy)


class DdpHook:
    """A DDP communication hook that runs one allreduce plan: `register_comm_hook(None, hook)`.

    `ddp_hook` makes it, and explains the parameters. Frameworks that take DDP's hooks take it, too.
    It can be pickled, and so can a model that has it: a copy has the plan and the options, no
    rounding errors to feed back, and meets the ranks of the default group at its first bucket.
    """

    def __init__(
        self,
        plan: Plan | str | Path,
        group: dist.ProcessGroup | None,
        policy: Policy,
        *,
        error_feedback: bool,
    ) -> None:
        if error_feedback and policy.compress is None:
            raise InputError(
                "error_feedback without compress: nothing is lost that could be fed back; name a "
                "codec"
            )
        self.plan, self.policy, self.error_feedback = plan, policy, error_feedback
        self._prepare()
        self._group = group
        if not self._is_off and (dist.is_initialized() or group is not None):
            self._connect(group)

    def _prepare(self) -> None:
        heed_log_level()
        self._is_off, self._group = are_plans_off(), None
        if self._is_off and self.policy.keeps_bits:
            raise bits_without_plans()
        # DDP logs the hook's name, which it reads as a function's.
        self.__name__ = self.__qualname__ = "ddp_hook"
        self._connected: tuple[Communicator, ThreadQueue] | None = None
        self._usage: GroupUsage | None = None
        self._residuals = Names(FEEDBACK).find("residuals")() if self.error_feedback else None

    def _connect(self, group: dist.ProcessGroup | None = None) -> tuple[Communicator, ThreadQueue]:
        """Make the communicator and its queue. Collective over the ranks of the group.

        Raise InputError if plans are off, or the plan is not for allreduce.
        """
        if self._is_off:
            raise InputError(
                f"{PLANS}={OFF}: the hook has no communicator, DDP averages as without it; "
                "hook.summary() says what ran in either case"
            )
        communicator = Communicator(
            self.plan,
            None if group is None else make_group_maker(group),
            policy=self.policy,
        )
        if communicator.plan.collective.name != "allreduce":
            raise InputError(
                "DDP needs a plan for allreduce, this one is for "
                f"{communicator.plan.collective.name}"
            )
        if self.policy.compress is None:
            communicator.plan.check_same_bits()
        dispatcher = communicator.dispatcher
        dispatcher.race_on_calls()
        find_usage_log().observe(dispatcher)
        calls = make_queue(dispatcher.device)
        # The thread ends with the model that had the hook.
        weakref.finalize(self, calls.close, dispatcher.transport.faults.break_off)
        self._open_usage(
            group, lambda: {"allreduce": communicator}, dispatcher.transport.links.stock_engine
        )
        self._connected = communicator, calls
        return self._connected

    def _open_usage(
        self,
        group: dist.ProcessGroup | None,
        list_used: Callable[[], dict[str, Communicator]] | None,
        stock: str = "",
    ) -> None:
        ranks, is_first = dist.get_process_group_ranks(group), dist.get_rank(group) == 0
        self._usage = find_usage_log().open(
            CountedGroup(
                "ddp_hook", ranks, list_used, self.policy.choose, is_first, stock, is_hook=True
            )
        )
        weakref.finalize(self, self._usage.close)

    def summary(self) -> Summary:
        """Return which schedules this hook's calls have used so far, by size.

        Raise InputError if the extra that counts calls is not installed.
        """
        return find_usage_log().summarize([] if self._usage is None else [self._usage])

    @property
    def communicator(self) -> Communicator:
        """The communicator that runs the plan. Collective if the ranks have not met yet.

        Raise InputError if plans are off, or the plan is not for allreduce.
        """
        return (self._connected or self._connect())[0]

    def __call__(
        self,
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        """Return a future of the bucket's average over all ranks.

        `state`, what register_comm_hook was given, is not used.
        """
        if self._is_off:
            if self._usage is None:
                self._open_usage(self._group, None)
            return allreduce_hook(self._group or _find_world(), bucket)
        tensor = bucket.buffer()
        residual = None if self._residuals is None else self._residuals.of(bucket)
        # Outside a backward pass, DDP calls its hook only from join().
        convert = _tensor_or_failure if torch._C._current_graph_task_id() >= 0 else _tensor_or_raise
        try:
            work = show_as("allreduce_", lambda: self._start(tensor, residual))
        except RuntimeError as error:
            failed: torch.futures.Future[Any] = torch.futures.Future()
            failed.set_result(Failed(error))
            return failed.then(convert)
        return work.progress.future.then(convert)

    def _start(self, tensor: torch.Tensor, residual: torch.Tensor | None) -> PlannedWork:
        communicator, calls = self._connected or self._connect()
        # Half-precision sums could overflow, and encoded ones: they are divided first, as DDP
        # itself does.
        divides_first = self.policy.compress is not None or tensor.dtype == torch.float16
        return start(
            communicator.calls.prepare(
                tensor,
                op=dist.ReduceOp.SUM if divides_first else dist.ReduceOp.AVG,
                residual=residual,
            ),
            calls,
            [tensor],
            waits=False,
            name="topo:all_reduce",
            reads=[] if residual is None else [residual],
            first=partial(tensor.div_, communicator.size) if divides_first else lambda: None,
        )

    def __repr__(self) -> str:
        plan = self.plan if self._connected is None else self._connected[0].plan
        what = f"{plan.collective.name} on {plan.topology.name}" if isinstance(plan, Plan) else plan
        shown: dict[str, object] = {"choose": self.policy.choose}
        if self.policy.compress:
            shown |= {"compress": self.policy.compress, "reduction": self.policy.reduction}
        if self.error_feedback:
            shown["error_feedback"] = True
        options = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"<topoplan.ddp_hook of {what}: {options}>"

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("plan", "policy", "error_feedback")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._prepare()


class PlanlessHook(DdpHook):
    """A DDP communication hook without a plan: it averages through a group of the backend "topo".

    That has the ranks of `group` (default: all), is made with the hook if these exist already, else
    at the first bucket, and finds plans as the backend does, by the options in `policy`. A copy by
    pickle makes a group of all ranks.
    """

    _own: dist.ProcessGroup | None

    def __init__(self, group: dist.ProcessGroup | None, policy: Policy) -> None:
        self.policy = policy
        self._prepare()
        if dist.is_initialized() or group is not None:
            self._own = self._make_group(group)

    def _prepare(self) -> None:
        heed_log_level()
        self.__name__ = self.__qualname__ = "ddp_hook"
        self._own = None

    def _make_group(self, group: dist.ProcessGroup | None) -> dist.ProcessGroup:
        register()
        made: dist.ProcessGroup = dist.new_group(
            dist.get_process_group_ranks(group),
            timeout=self.policy.timeout,
            backend=NAME,
            pg_options=backend_options(policy=self.policy),
            use_local_synchronization=True,
        )
        return made

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group that averages. Collective if it is not made yet."""
        if self._own is None:
            self._own = self._make_group(None)
        return self._own

    @property
    def communicator(self) -> Communicator:
        """Raise InputError: plans are found later, and the backend has their communicators."""
        raise InputError(
            "a hook without a plan has no communicator: the backend makes one when it has found a "
            "plan; hook.summary() says what ran"
        )

    def summary(self) -> Summary:
        """Return which schedules the group's calls have used so far, by size.

        Raise InputError if the extra that counts calls is not installed.
        """
        found: Summary = self.group.summary()  # type: ignore[attr-defined]
        return found

    def __call__(
        self,
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        """Return a future of the bucket's average over all ranks.

        `state`, what register_comm_hook was given, is not used.
        """
        return allreduce_hook(self.group, bucket)

    def __repr__(self) -> str:
        return f"<topoplan.ddp_hook: the backend finds plans, choose={self.policy.choose!r}>"

    def __getstate__(self) -> dict[str, object]:
        return {"policy": self.policy}


def _find_world() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None  # DDP has made its own group from it
    return world


def _tensor_or_failure(future: torch.futures.Future[Any]) -> torch.Tensor:
    """Return the only tensor, or a failure unchanged.

    DDP cannot cast a failure to a tensor, so its text ends up in DDP's own error.
    """
    result = future.value()
    return result if isinstance(result, Failed) else result[0]  # type: ignore[return-value]


def _tensor_or_raise(future: torch.futures.Future[Any]) -> torch.Tensor:
    tensor: torch.Tensor = tensors_or_raise(future)[0]
    return tensor
