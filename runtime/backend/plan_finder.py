"""The search for a collective's plan: rank 0 loads or synthesizes it, and sends it to the others.

Everything goes through the group's store, in a background thread, so only the ranks of the group
take part, and only rank 0 needs files and time. Rank 0's answer is JSON data with the plan, an
error, or neither. Modules that read, join and change machines are imported only if there is a
machine to plan for, not for plans from files.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import Store

from ...synth.ir.collective import Collective
from ...synth.ir.demands import Demands
from ...synth.numeric.effort import Effort
from ...synth.plan import Plan
from ...synth.request import Request
from ...topo import errors
from ...topo.errors import (
    ExecutionError,
    InfeasibleError,
    TimeLimitError,
    TopoplanError,
)
from ...topo.graph import Topology
from ..dispatcher import Dispatcher
from ..ranks.addresses import Addresses, find_ended
from ..ranks.set_up import explain_failure
from ..ranks.store import put, take
from .options import AUTO, BackendOptions, Plans
from .plan_files import PlanFiles, is_plan_file
from .planning import load_or_synthesize
from .scope import Scope

log = logging.getLogger("topoplan")
# Held by the thread that makes a plan: several at once would take as long, and more memory. It
# never waits for a rank.
_SYNTHESIZES = threading.Lock()
# Polling interval for an error that makes waiting for a plan pointless: shorter than people notice.
_PREPARATION_POLL_S = 0.05
# A longer wait for a plan is logged: people take it for a hang.
LONG_WAIT_S = 2.0
# Time for which calls wait for a plan beyond the time limit of its search: on a busy host, ending
# the search and building the plan take seconds.
_BUILD_S = 10.0


class PlanFinder:
    """Finds the plans of one group; a method marked collective must be called by all its ranks.

    `scope` has the group's global ranks, this rank's number among them, and what the plans are for;
    `store` is the group's, `timeout` limits waits, `addresses` are where the ranks receive reports
    of failures, by global rank.
    """

    def __init__(
        self,
        options: BackendOptions,
        store: Store,
        scope: Scope,
        timeout: timedelta,
        addresses: Addresses,
    ) -> None:
        self.options, self.store, self.scope, self.timeout = options, store, scope, timeout
        self._addresses = addresses
        self.is_auto = options.plans == AUTO
        """Whether plans are synthesized for the machine of the ranks, as the user named none."""
        self.rank, self.ranks = scope.rank, scope.ranks
        self.off = options.off or len(scope.ranks) < 2
        """Whether plans are turned off for all collectives."""
        self.stop = threading.Event()
        """Set when the group closes: ends all searches, at once."""
        self.is_closing = threading.Event()
        """Set some seconds earlier: rank 0 ends its searches, but answers the other ranks."""
        self.wait_s: float = options.policy.time_limit_s + _BUILD_S
        self._finds_machine, self._reads_source = threading.Lock(), threading.Lock()
        self._machines: dict[str, Topology | TopoplanError | None] = {}
        self.source: PlanFiles | Topology | None = None
        """The plans that the user named, or the topology to plan for; None before they are read."""
        self.whys: dict[str, str] = {}
        """Why there is no plan for a collective, by its name; on rank 0 only."""

    def prepare(self, name: str, root: int | None, device: torch.device) -> "Preparation":
        """Start to search for a plan in a thread, and return the search.

        `name` is the collective's, `root` the root's number in the group, if it has one, `device`
        that of tensors.
        """
        return Preparation(
            partial(self.find, name, root, device),
            name,
            self.wait_s,
            is_first=self.rank == 0,
        )

    def find(
        self,
        name: str,
        root: int | None,
        device: torch.device,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Plan | None:
        """Return the plan for a collective on tensors of `device`; None if there is none.

        `name` is the collective's, `root` the root's number in the group, if it has one. There is
        no plan either if `is_over()`, asked meanwhile on rank 0, ends the search. Collective over
        the group. Raises the same error on every rank if a named plan cannot be used, and
        ExecutionError if a rank does not answer.
        """
        wanted = self.scope.describe(name, root, device.type)
        key = f"plan/{device.type}/{name}/{wanted.root}"
        try:
            machine = self.find_machine(device)
            if self.rank == 0:
                plan, answer = self.make_answer(wanted, machine, is_over)
                self.send(key, answer, plan, device.type)
                if "error" not in answer:
                    return plan
            else:
                answer = self.receive(key)
        except TopoplanError:
            raise
        except RuntimeError as error:
            if self.stop.is_set():
                raise ExecutionError(
                    "the process group was shut down during the search for a plan"
                ) from error
            raise self.explain(f"finding a plan for {name}", error) from error
        return self.read_answer(answer, name)

    def explain(self, what: str, error: Exception) -> ExecutionError:
        """Return the ExecutionError for a failed step `what`, with the rank at fault if known."""
        return explain_failure(
            self.ranks[self.rank],
            self.ranks,
            what,
            error,
            self.timeout,
            self._addresses,
            is_store_gone=False,
        )

    def read_answer(self, answer: dict[str, Any], name: str) -> Plan | None:
        """Return the plan in rank 0's `answer` for collective `name`, None without one.

        Raise the error that the answer reports, as all ranks do.
        """
        if "error" in answer:
            error: TopoplanError = getattr(errors, answer["error"])(answer["message"])
            error.is_common = True
            raise error
        return Plan.loads(answer["plan"], f"rank 0's plan for {name}") if "plan" in answer else None

    def send(self, key: str, answer: dict[str, Any], plan: Plan | None, device: str) -> None:
        """Write rank 0's `answer` to the store under `key`, for the other ranks.

        `plan` is what the answer has (None: no plan), for tensors on the device type `device`.
        Neither is used here.
        """
        put(self.store, key, answer)

    def receive(self, key: str) -> dict[str, Any]:
        """Return the answer that rank 0 writes to the store under `key`, waiting for it.

        Raise RuntimeError if it does not come in time.
        """
        answer: dict[str, Any] = take(
            self.store,
            key,
            self.timeout + timedelta(seconds=2 * self.options.policy.time_limit_s),
            self.stop,
            self.check_rank_0,
        )
        return answer

    def settle(self, dispatcher: Dispatcher) -> None:
        """Choose what a new `dispatcher` uses at a size known before its first call.

        Nothing here: no size is known.
        """

    def check_rank_0(self) -> None:
        """Raise RuntimeError if the process of the group's rank 0 has ended.

        That rank provides the plan.
        """
        first = self.ranks[0]
        if find_ended({first: self._addresses[first]}):
            raise RuntimeError(f"rank {first} has ended")

    def find_machine(self, device: torch.device) -> Topology | TopoplanError | None:
        """Return, on rank 0, the machine that the group's ranks run on, or the error of finding it.

        Return None on other ranks, and where the user named plans. Collective once per device type.
        """
        if not self.is_auto:
            return None
        with self._finds_machine:
            if device.type not in self._machines:
                try:
                    self._machines[device.type] = self.scope.find_machine(
                        self.store, device, self.timeout, self.stop
                    )
                except TopoplanError as error:
                    self._machines[device.type] = error
            return self._machines[device.type]

    def make_answer(
        self,
        wanted: Collective,
        machine: Topology | TopoplanError | None,
        is_over: Callable[[], bool],
    ) -> tuple[Plan | None, dict[str, Any]]:
        """Return rank 0's plan for `wanted`, or None, and the answer to send to the other ranks.

        `machine` is the result of `find_machine`. There is no plan if `is_over()`, asked meanwhile,
        ends the search. The answer is JSON data: the plan, an error, or neither.
        """
        try:
            plan = (
                self._synthesize(wanted, machine, is_over)
                if self.is_auto
                else self._pick_named(wanted, is_over)
            )
            if plan is None:
                self.whys[wanted.name] = "none of the plans is for it"
                return None, {}
            if wanted.name == "allreduce":
                plan.check_same_bits()
            return plan, {"plan": json.dumps(plan.to_json())}
        except TopoplanError as error:
            closes = self.is_closing.is_set() or self.stop.is_set()
            is_ended = isinstance(error, TimeLimitError) and (closes or is_over())
            if (
                self.is_auto
                or is_ended
                or not self.scope.insists
                or (not self.scope.whole and isinstance(error, (InfeasibleError, TimeLimitError)))
            ):
                why = str(error)
                if is_ended and not closes:
                    why = f"calls waited for it for {self.wait_s:g} s, which its search exceeds"
                self.whys[wanted.name] = why
                log.log(
                    logging.DEBUG if closes else logging.WARNING,
                    "%s over ranks %s goes without a plan: %s",
                    wanted.name,
                    self.ranks,
                    why,
                )
                return None, {}
            return None, {"error": type(error).__name__, "message": str(error)}

    def _synthesize(
        self,
        wanted: Collective,
        machine: Topology | TopoplanError | None,
        is_over: Callable[[], bool],
    ) -> Plan:
        if isinstance(machine, TopoplanError):
            raise machine
        assert machine is not None
        from ...topo.loader.resolve import load_for_planning

        topology, router = load_for_planning(machine)
        policy = self.options.policy

        def is_stopped() -> bool:
            return self.is_closing.is_set() or self.stop.is_set() or is_over()

        while not _SYNTHESIZES.acquire(timeout=_PREPARATION_POLL_S):
            if is_stopped():
                raise TimeLimitError("the search for a plan did not begin in time")
        try:
            request = Request(
                wanted,
                topology,
                Effort(policy.time_limit_s),
                router=router,
                reproducible=policy.keeps_bits and wanted.reduces,
                helpers=tuple(self.scope.helpers),
            )
            # The process that makes other plans knows collectives alone.
            is_listed = isinstance(wanted, Demands)
            return load_or_synthesize(
                request, policy.cache_folder, None if is_listed else is_stopped
            )
        finally:
            _SYNTHESIZES.release()

    def _pick_named(self, wanted: Collective, is_over: Callable[[], bool]) -> Plan | None:
        """Return the user's plan for a collective; None if none fits a subgroup."""
        picked = self.scope.pick(self.open_source(), wanted)
        return self._synthesize(wanted, picked, is_over) if isinstance(picked, Topology) else picked

    def open_source(self) -> PlanFiles | Topology:
        """Return the plans that the user named, or the topology to plan for; read once."""
        with self._reads_source:
            if self.source is None:
                self.source = _read_source(self.options.plans)
            return self.source


class Preparation:
    """The search for one plan by `find`, in a thread that starts at once.

    `future` gets the plan, or None if there is none. `find` is given a function that returns True
    once a call has waited `limit_s` seconds: then it must end. The group's first rank (`is_first`)
    logs a long wait for the plan of the collective `name`.
    """

    def __init__(
        self,
        find: Callable[[Callable[[], bool]], Plan | None],
        name: str,
        limit_s: float,
        *,
        is_first: bool,
    ) -> None:
        self._find, self._name, self._limit_s, self._is_first = find, name, limit_s, is_first
        self._ends = math.inf
        self.future: Future[Plan | None] = Future()
        self.thread = threading.Thread(target=self._search, name="topoplan-plans", daemon=True)
        self.thread.start()

    def wait(self, find_error: Callable[[], Exception | None]) -> Plan | None:
        """Wait for the end of the search; return the plan, or None if there is none.

        Raise the error of the search, or an error that `find_error`, asked meanwhile, returns.
        """
        began, logs = time.monotonic(), self._is_first
        self._ends = began + self._limit_s
        while not wait([self.future], _PREPARATION_POLL_S).done:
            error = find_error()
            if error is not None:
                raise error
            waited_s = time.monotonic() - began
            if logs and waited_s >= LONG_WAIT_S:
                logs = False
                log.warning(
                    "waiting for the plan of %s, at most %.0f s more",
                    self._name,
                    max(0.0, self._limit_s - waited_s),
                )
        return self.future.result()

    def _search(self) -> None:
        try:
            self.future.set_result(self._find(lambda: time.monotonic() > self._ends))
        except Exception as error:  # raised by `wait`
            self.future.set_exception(error)


def _read_source(plans: Plans) -> PlanFiles | Topology:
    if isinstance(plans, Plan):
        return PlanFiles([plans])
    if not isinstance(plans, (str, Path)):
        return PlanFiles(plans)
    path = Path(plans)
    if path.is_dir() or is_plan_file(path):
        return PlanFiles([path])
    from ...topo.loader.resolve import resolve

    return resolve(str(plans))
