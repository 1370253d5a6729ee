"""The class that users create: `Communicator(plan).allreduce(tensor)`.

A plan holds schedules of one collective: which rank sends what to whom, and when. The dispatcher
carries out calls, within layers if there are any, such as one that survives a lost link. The stock
collective is the backend's own (gloo's, NCCL's, MPI's). Collective methods must be called by all
ranks.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..synth.plan import Plan
from ..topo.errors import InputError, PlanMismatchError, TopoplanError
from .candidates import Choice
from .choices import FindWorth
from .codec import Codec, find_codec
from .dispatcher import CallPath, Dispatcher
from .layers import Layer, LayerKind, SharedLayers, find_layer, refuse, wrap_all
from .observers import observe_links
from .option_names import ON_FAULTS, ON_SLOWS, POINT_TO_POINT
from .persistent_calls import CallCache
from .policy import DEFAULT_TIMEOUT, ChooseMode, Policy, make_policy
from .program.layout import IN_PLACE
from .ranks.groups import GroupMaker
from .ranks.last_words import shorten_last_words
from .ranks.launch import announce_ready
from .ranks.transport import SharedTransport, Transport
from .reductions import check_are_tensors
from .roles import find_role
from .runners.programs import Messages


class Communicator:
    """Runs one plan's collective over the ranks of `group` (default: all).

    Constructing it is collective: every rank of the default group must do so, in the same order. It
    makes its own process group, so that its messages never mix with others'; communicators that are
    given one Transport share its group, and must be called in one order on all ranks. Before any
    data moves the ranks agree on the plan; if they do not, or their number is not the plan's, every
    rank raises PlanMismatchError.

    `choose` decides how a schedule is chosen for a size: `race` (at the first call of each power of
    two, the candidates with the best predictions, the plan's own schedule for the size, and the
    stock collective are run on scratch memory; the fastest is used from then on), `model` (by
    prediction alone, so the same in every run), `plan` (the plan's own ranges of sizes),
    `same-bits` (for reproducible plans: only their schedules race, all of which add every element
    up in one bracketing (the same partial sums), so that its bits do not depend on the size of the
    buffer or its place in it), or a function. The function gets the size in bytes and the list of
    candidates, and returns one of them, None for the stock collective, or one of these names for
    that size; it must return the same on all ranks. `timeout` is the deadline of a call: by then it
    has ended, or has raised ExecutionError on every rank that is still alive. A call of another
    collective than the plan's, or with an argument that is no tensor, raises InputError. Races are
    cached in the folder `cache` (default: TOPOPLAN_CACHE, else topoplan in the user's cache
    folder), so that the next start tries the winner first; if that folder cannot be used, a warning
    says so.

    `compress` names a codec (fp16, bf16, fp8, fp8-e5m2, int8) in which floating-point values are
    sent, whatever the schedule; they are summed in float32, and all ranks end with the same bits.
    `reduction` decides when they are rounded: `hops` (whenever they are sent, partial sums too), or
    `once` (each contribution once, then their whole sum once: only schedules that bring all
    contributions to one rank in one hop). The stock collective, which does not compress, does not
    race.

    If the plan is for some of a topology's GPUs, the group has a rank for each GPU of the topology
    or for each participant: members, which make the calls, and helpers, which carry bytes and call
    `serve`. Parts of buffers, results and `size` are the members' alone; `rank` is the number in
    the topology. Ranks that take no part have nothing to do.

    `executor` (default: TOPOPLAN_EXECUTOR, else `auto`) decides how schedules are executed:
    `point-to-point` sends messages over gloo, NCCL or MPI; `one-sided` plays them in memory that
    all ranks share, which takes ranks on one host, and on GPUs Triton (extra `kernels`) and
    peer-to-peer between all of them; with `auto` both race. If ranks on CPUs are on several hosts,
    `one-sided` sends messages within a host through its memory, and the others over gloo.

    `on_fault` (default: TOPOPLAN_ON_FAULT, else `raise`) decides what happens when a link is lost
    while all ranks live: `raise` ends the call by ExecutionError; `replan` (over gloo) finishes it
    by a plan without the link, with the right result on all ranks, if the links left connect them.
    It costs two copies of each buffer, memory for two, and a change of threads per call; the stock
    collective then does not race, since it could not be left. `close` waits for the other ranks,
    which may still need this one.

    `on_slow` decides what happens when a link becomes slow: `warn` (default) logs it, `replan`
    (over gloo) also plans for the rates that are left, tries those schedules on the next calls, and
    uses them if they are faster, until the link has recovered.

    `policy` has all these options at once, in place of the others.
    """

    # On members alone; see __getattr__.
    path: CallPath
    """What carries out the calls: the dispatcher, or a layer around it."""
    calls: CallCache
    """Prepares calls, and caches those that recur on the same tensors."""

    def __init__(  # noqa: PLR0913 (what users set; ranks that make no calls)
        self,
        plan: Plan | str | Path,
        group: dist.ProcessGroup | GroupMaker | Transport | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        choose: ChooseMode = "race",
        compress: str | None = None,
        reduction: str = "hops",
        cache: str | Path | None = None,
        executor: str | None = None,
        on_fault: str | None = None,
        on_slow: str = ON_SLOWS[0],
        *,
        policy: Policy | None = None,
    ) -> None:
        if isinstance(group, Transport) and policy is None:
            # The environment means communicators with connections of their own.
            on_fault = on_fault or ON_FAULTS[0]
        policy = make_policy(
            policy,
            timeout=timeout,
            choose=choose,
            compress=compress,
            reduction=reduction,
            cache=cache,
            executor=executor,
            on_fault=on_fault,
            on_slow=on_slow,
        )
        codec = None if policy.compress is None else find_codec(policy.compress)
        if not isinstance(group, Transport) and not dist.is_initialized():
            raise InputError("torch.distributed is not initialised; call init_process_group first")
        shorten_last_words()
        plan_or_error = _load_plan(plan)
        kinds = {name: find_layer(name) for name in policy.layers}
        prepared = {name: kind.prepare() for name, kind in kinds.items()}
        self._transport = (
            group if isinstance(group, Transport) else Transport(group, policy.timeout)
        )
        self._shares_transport = self._transport is group
        for name, kind in kinds.items():
            refuse(policy.spell_layer(name), self._why_no_layer(kind))
        shared = self._transport.find_part(SharedLayers) if self._shares_transport else None
        self._layers: list[Layer] = [] if shared is None else [*shared.layers]
        exchange = (self._layers[-1] if self._layers else self._transport.control).exchange
        # The backend makes communicators as part of a call of the user's, which has a number.
        is_in_call = isinstance(group, SharedTransport) or bool(self._layers)
        with (
            nullcontext()
            if is_in_call
            else self._transport.faults.stock("the agreement of the ranks before a plan is used")
        ):
            self.plan = _agree_on_plan(plan_or_error, exchange)
            for name, kind in kinds.items():
                refuse(policy.spell_layer(name), kind.why_not_plan(self.plan))
            self._role = role = find_role(self.plan, self._transport, codec)
            self.rank, self.size = role.label, len(self.plan.collective.members)
            if role.members is None:
                announce_ready()
                return
            openings = [
                partial(kind.open, role.members, prepared[name]) for name, kind in kinds.items()
            ]
            with_stock = (shared is None or shared.leaves_stock) and all(
                kind.leaves_stock for kind in kinds.values()
            )
            self.path = self._open_path(role.members, policy, codec, openings, with_stock)
        self.calls = CallCache(self.path)
        announce_ready()

    def _open_path(
        self,
        members: Transport,
        policy: Policy,
        codec: Codec | None,
        openings: Sequence[Callable[[], Layer]],
        with_stock: bool,
    ) -> CallPath:
        """Return the dispatcher over the members' transport, within all layers. Collective.

        `openings` open the layers that are not the transport's, the innermost first.
        """

        def make_sender(plan: Plan, transport: Transport) -> Messages:
            sender = Messages(
                transport, plan.topology, codec, rounds_once=policy.reduction == "once"
            )
            observe_links(sender, transport, plan.topology)
            return sender

        def make_path(plan: Plan, transport: Transport, find_worth: FindWorth) -> CallPath:
            return Dispatcher(
                plan,
                transport,
                replace(policy, executor=POINT_TO_POINT, runners=()),
                [make_sender(plan, transport)],
                with_stock=with_stock,
                find_worth=find_worth,
            )

        senders = self._role.list_senders(make_sender(self.plan, members))
        path = Dispatcher(self.plan, members, policy, senders, with_stock=with_stock)
        self._layers += [open_layer() for open_layer in openings]
        return wrap_all(path, self._layers, make_path)

    def _why_no_layer(self, kind: LayerKind) -> str | None:
        """Return why calls cannot go through a layer, None if they can."""
        if self._shares_transport:
            return "a Transport that others share: calls need connections of their own; give none"
        return kind.why_not(self._transport.links)

    def __getattr__(self, name: str) -> Any:
        # Ranks that are no members make no calls.
        if name in ("path", "calls"):
            raise InputError(self._role.explain())
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def serve(self, calls: int | None = None) -> int:
        """Carry bytes for the members' calls, on a helper, and return how many calls were served.

        Returns when the members have closed their communicators, or ended; with `calls`, also after
        so many. Between two such calls the members wait for this rank. Ranks that take no part
        return at once. Raise ExecutionError, as the members do, if a call fails.
        """
        return self._role.serve(calls)

    def allreduce(
        self,
        tensor: torch.Tensor,
        op: object = dist.ReduceOp.SUM,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Reduce the tensors of all ranks, in place on every rank.

        Shapes and dtypes must be the same on all ranks. `residual` (with compression, of SUM and
        AVG) is error feedback: a float32 tensor of as many elements as the tensor, zeros at first.
        It is added to the tensor and receives this rank's rounding errors; over all ranks nothing
        is lost.
        """
        play = None if residual is not None else self.calls.find_play(tensor, op)
        if play is not None:
            play()
            return tensor
        return self._run("allreduce", tensor, None, op, residual)

    def reduce(self, tensor: torch.Tensor, op: object = dist.ReduceOp.SUM) -> torch.Tensor:
        """Reduce the tensors of all ranks, in place at the plan's root; return the tensor.

        Other ranks' tensors then hold partial results.
        """
        return self._run("reduce", tensor, None, op)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy the tensor of the plan's root to every rank, in place; return it."""
        return self._run("broadcast", tensor)

    def allgather(self, output: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenate the tensors of all ranks in `output` and return it.

        It is ranks times as long as `tensor`.
        """
        return self._run("allgather", output, tensor)

    def gather(self, output: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor | None:
        """Concatenate the tensors of all ranks in `output` at the plan's root; return `output`.

        On other ranks `output` is None; raise InputError if only one of these holds.
        """
        self._check_call("gather", tensor if output is None else output, tensor)
        if self._is_root != (output is not None):
            raise InputError("gather: give an output at the root, and None at the other ranks")
        self._run("gather", tensor.new_empty(0) if output is None else output, tensor)
        return output

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: object = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        """Reduce the tensors of all ranks, write this rank's part to `output` and return it.

        Each tensor is as long as `output` times the number of ranks.
        """
        return self._run("reduce-scatter", output, tensor, op)

    def scatter(self, output: torch.Tensor, tensor: torch.Tensor | None) -> torch.Tensor:
        """Write this rank's part of the root's tensor to `output`, and return it.

        On ranks other than the root, `tensor` is None; raise InputError if only one of these holds.
        """
        self._check_call("scatter", output, output if tensor is None else tensor)
        if self._is_root != (tensor is not None):
            raise InputError("scatter: give a tensor at the root, and None at the other ranks")
        return self._run("scatter", output, output.new_empty(0) if tensor is None else tensor)

    def alltoall(self, output: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Send part j of `tensor` to rank j, and write rank j's part to part j of `output`.

        Return `output`. All parts are equally long.
        """
        return self._run("alltoall", output, tensor)

    def choice(self, size_bytes: int) -> Choice | None:
        """Return what calls of a size use: a candidate (schedule) or stock, with its race's times.

        `size_bytes` is the size on the wire, rounded down to a power of two. None before its first
        call.
        """
        return self.dispatcher.choices.find(size_bytes)

    @property
    def dispatcher(self) -> Dispatcher:
        """The object that carries out calls; another one after a fault."""
        return self.path.base

    @property
    def wire_bytes(self) -> int:
        """The bytes that this rank has sent by schedules so far, those of races included."""
        if self.rank not in self.plan.collective.members:
            return self._role.sent_bytes
        return self.path.sent_bytes

    @property
    def recoveries(self) -> list[dict[str, Any]]:
        """The faults after which calls went on, and changes of links that the plan followed.

        There is a dict for each. It has its `kind`; `at`, the seconds from this object's start to
        noticing the fault; the number of the `call`; the `seconds` from noticing to going on; and
        the `bound_GBps` of what is left. With `on_fault` (kind `lost`) it also has the
        `lost_links`, whether the plan `is_spare` or was made then, and `resent_bytes`, what this
        rank sent to make the call again. With `on_slow` (kinds `slow` and `recovered`) it has the
        `links`, each with the fraction of its earlier rate, and of the `size_bytes` that took
        longest the seconds of a call `before_s`, `during_s` (by the schedule in use) and `after_s`,
        which are None until they are known.
        """
        rows = [row for layer in self._layers for row in layer.history]
        return sorted(rows, key=lambda row: row["at"])

    def count_relayed_bytes(self) -> dict[int, int]:
        """Return the bytes that each helper has sent for the members so far, by its rank.

        Collective over the members.
        """
        return self._role.count_relayed_bytes()

    def close(self) -> None:
        """Destroy the process group unless it is shared; a later call raises ExecutionError.

        Helpers are let go once the first member closes; a helper that closes stops to serve.
        """
        if not self._shares_transport:
            for layer in reversed(self._layers):
                layer.close()
        self._role.close(self._transport)
        if not self._shares_transport:
            self._transport.close()

    @property
    def _is_root(self) -> bool:
        return bool(self.plan.collective.root == self.dispatcher.rank)

    def _run(
        self,
        name: str,
        output: torch.Tensor,
        tensor: torch.Tensor | None = None,
        op: object = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        tensors: list[object] = [output] if name in IN_PLACE else [output, tensor]
        self._check_call(name, *tensors, *([] if residual is None else [residual]))
        self.calls.prepare(output, tensor, op, residual).run()
        return output

    def _check_call(self, name: str, *tensors: object) -> None:
        """Raise InputError if the plan is for another collective, or an argument is no tensor."""
        if self.plan.collective.name != name:
            raise InputError(
                f"the plan is for {self.plan.collective.name}, not for {name}; synthesize one for "
                "it"
            )
        check_are_tensors(name, tensors)


def _load_plan(plan: Plan | str | Path) -> Plan | TopoplanError:
    """Return the plan, or the error of reading it.

    The caller raises the error only after this rank has answered the others, which wait for it.
    """
    if isinstance(plan, Plan):
        return plan
    try:
        return Plan.load(plan)
    except TopoplanError as error:
        return error


def _agree_on_plan(plan: Plan | TopoplanError, exchange: Callable[[object], list[Any]]) -> Plan:
    """Return the plan once all ranks have compared its hash.

    An empty hash stands for a rank without a plan.
    """
    hashes = exchange(plan.hash if isinstance(plan, Plan) else "")
    if isinstance(plan, TopoplanError):
        plan.is_common = not any(hashes)
        raise plan
    without = [str(rank) for rank, digest in enumerate(hashes) if not digest]
    if without:
        raise PlanMismatchError(
            f"rank {', '.join(without)} could not read its plan; see its own error"
        )
    others = [str(rank) for rank, digest in enumerate(hashes) if digest != hashes[0]]
    if others:
        error = PlanMismatchError(
            f"the ranks do not hold the same plan: rank{'s' if len(others) > 1 else ''} "
            f"{', '.join(others)} and rank 0 differ; give all of them the same file"
        )
        error.is_common = True
        raise error
    return plan
