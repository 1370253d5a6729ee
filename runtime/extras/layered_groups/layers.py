"""The layers that a group's calls by plans on CPU tensors pass through, such as fault recovery.

A layer is code around all calls of a transport (runtime/layers.py); the group's options name them.
If no stock collective may run under a layer, the ranks' agreements pass through it, too: once a
link is lost, the group's store may be unreachable, and so may a rank over the plain group.

A stock collective is gloo's, NCCL's or MPI's own, without a plan.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ....synth.ir.collective import spell_ranks
from ....synth.plan import Plan
from ....topo.errors import ExecutionError, TopoplanError
from ...backend.around import Around
from ...backend.call_check import CallCheck
from ...backend.communicators import Communicators
from ...backend.plan_files import PlanFiles
from ...backend.plan_finder import PlanFinder
from ...backend.sizes import Key
from ...layers import SharedLayers, find_layer
from ...ranks.store import put, take
from ...ranks.transport import Transport
from ...runners.contract import prepare_runner

# Time for other ranks to end their last call, which may need this one if a link is lost. It ends,
# since a script whose rank fails may come here while the others are in a call.
_CLOSE_S = 10.0


@dataclass(frozen=True)
class _Opened:
    """The layers over one transport, the innermost first."""

    transport: Transport
    shared: SharedLayers

    def exchange(self, value: object) -> list[Any]:
        """Return the values of all ranks, by rank, through all layers. Collective."""
        return self.shared.layers[-1].exchange(value)

    def break_off(self, error: ExecutionError) -> None:
        """Make all calls fail with an error, the one in progress too."""
        for layer in reversed(self.shared.layers):
            layer.break_off(error)

    def close(self) -> None:
        """End the layers, the outermost first, then the transport."""
        for layer in reversed(self.shared.layers):
            layer.close(_CLOSE_S)
        self.transport.close()


class GroupLayers(Around):
    """The layers that a group's options ask for; made at the first call that needs them.

    They are hooks around the group's calls (backend/around.py); `planned` has its communicators.
    With `takes_all`, all its calls on CPU tensors go through them, and none by stock.
    """

    def __init__(self, planned: Communicators) -> None:
        self._planned, self._kinds = planned, [find_layer(x) for x in planned.options.layers]
        self._leaves_stock = all(kind.leaves_stock for kind in self._kinds)
        self.takes_all = not self._leaves_stock
        # By whether ranks have their numbers in the launch, not in the group.
        self._opened: dict[bool, _Opened] = {}

    def open(self, *, in_launch: bool | None = None) -> _Opened:
        """Return the layers, made at the first call. Only the group's queue may call this.

        Their ranks are numbered as in the launch if `in_launch`, else as in the group; None leaves
        that to the plans that rank 0 has. Collective the first time.
        """
        if in_launch is None:
            if self._opened:
                return next(iter(self._opened.values()))
            in_launch = _are_numbered_by_launch(self._planned.plans)
        if in_launch not in self._opened:
            self._opened[in_launch] = self._open(in_launch)
        return self._opened[in_launch]

    def _open(self, in_launch: bool) -> _Opened:
        planned, policy = self._planned, self._planned.options.policy
        prepared = [kind.prepare() for kind in self._kinds]
        transport = planned.make_transport(
            f"topoplan/{planned.name}/layered{'/launch' if in_launch else ''}",
            "gloo",
            "auto",
            planned.plans.scope.seats if in_launch else None,
        )
        if self.takes_all:  # what is asked while all links work
            planned.plans.find_machine(torch.device("cpu"))
            transport.control.find_cores_of_hosts()
            runner = transport.links.memory_runner
            if policy.compress is None:
                in_memory = [runner] if runner and not policy.sends_alone else []
                for name in (*in_memory, *policy.runners):
                    prepare_runner(name, transport)
        layers = tuple(
            kind.open(transport, noted) for kind, noted in zip(self._kinds, prepared, strict=True)
        )
        for layer in layers:
            layer.on_give_up.append(planned.transport("cpu").faults.break_off)
        shared = SharedLayers(layers, self._leaves_stock)
        transport.attach(shared)
        return _Opened(transport, shared)

    @property
    def recoveries(self) -> list[dict[str, Any]]:
        """The recoveries from faults so far, in all layers, one dict each."""
        layers = (layer for opened in self._opened.values() for layer in opened.shared.layers)
        rows = [row for layer in layers for row in layer.history]
        return sorted(rows, key=lambda row: row["at"])

    def find_plan(self, key: Key, wait: Callable[[], Plan | None]) -> Plan | None:
        """Return a collective's plan, None without one; `wait` returns the result of its search.

        `key` is (collective, root, device type). If the layers take all calls, rank 0's plan is
        sent through them, and never races as part of a file of several plans.
        """
        if not self.takes_all:
            return wait()
        opened, plans = self.open(), self._planned.plans
        answer: dict[str, Any] | None = None
        if plans.rank == 0:
            answer = _make_answer(plans, key, list(opened.transport.control.labels))
        return plans.read_answer(opened.exchange(answer)[0], key[0])

    def find_transport(self, device: str, plan: Plan) -> Transport | None:
        """Return the layers' transport for a plan's calls on CPUs; None (the group's) on GPUs."""
        if device != "cpu":
            return None
        in_launch = None if self.takes_all else not plan.collective.has_all_gpus
        return self.open(in_launch=in_launch).transport

    def compare(self, number: int, what: str, check: CallCheck) -> None:
        """Raise ExecutionError unless all ranks make call number `number` as `what` describes.

        If the layers take all calls, the comparison goes through them, else through the store.
        """
        if self.takes_all:
            check.compare(number, [str(call) for call in self.open().exchange(what)])
        else:
            check.wait_until_same(number)

    def check_stock(self, what: str) -> None:
        """Raise ExecutionError if the stock collective `what` cannot run, as a link is lost.

        Plans may still do without that link.
        """
        for opened in self._opened.values():
            for layer in opened.shared.layers:
                if (why_not := layer.explain_stock()) is not None:
                    raise ExecutionError(f"{what} goes by gloo, which {why_not}")

    def list_transports(self) -> list[Transport]:
        """Return the layers' transports, including those that were replaced after a fault."""
        return [
            transport
            for opened in self._opened.values()
            for transport in (opened.transport, *(x.transport for x in opened.shared.layers))
        ]

    def break_off(self, error: ExecutionError) -> None:
        """Make all calls of the layers fail with `error`, including those in progress."""
        for opened in list(self._opened.values()):
            opened.break_off(error)

    def close(self) -> None:
        """Close the layers, once the calls have ended."""
        for opened in self._opened.values():
            opened.close()


def _make_answer(plans: PlanFinder, key: Key, labels: list[int]) -> dict[str, Any]:
    """Return rank 0's answer about a plan on CPU tensors, for ranks with these numbers in plans."""
    name, root, _ = key
    ends = time.monotonic() + plans.wait_s
    plan, answer = plans.make_answer(
        plans.scope.describe(name, root, "cpu"),
        plans.find_machine(torch.device("cpu")),
        lambda: time.monotonic() > ends,
    )
    if plan is None or list(plan.collective.members) == labels:
        return answer
    message = (
        f"the plan for {plan.collective} on {plan.topology.name!r}: calls that go on "
        f"after a lost link share connections, and other plans of this group number "
        f"its ranks {spell_ranks(labels)}; name plans for all its collectives that do"
    )
    return {"error": "InputError", "message": message}


def _are_numbered_by_launch(plans: PlanFinder) -> bool:
    """Return whether plans number a group's ranks as the launch does; rank 0 knows.

    Collective, through the store.
    """
    key = "numbered-by-launch"
    try:
        if plans.rank == 0:
            try:
                source = None if plans.is_auto else plans.open_source()
            except TopoplanError:  # which the search for a plan raises, on all ranks
                source = None
            is_source = isinstance(source, PlanFiles) and source.has_members(plans.scope.seats)
            put(plans.store, key, {"answer": is_source})
        answer = take(plans.store, key, plans.timeout, plans.stop, plans.check_rank_0)
    except RuntimeError as error:
        raise plans.explain("finding out how plans number the ranks", error) from error
    return bool(answer["answer"])
