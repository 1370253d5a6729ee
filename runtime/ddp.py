"""The plug-in for DDP: model.register_comm_hook(None, topoplan.ddp_hook(plan)), or ddp_hook(plan, compress="int8", ...).

No postponed annotations here: DDP compares the annotations of a hook with the types themselves.
"""

import queue
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from ..synth.plan import Plan
from ..topo.errors import InputError, TopoplanError
from .communicator import DEFAULT_TIMEOUT, Communicator
from .feedback import Residuals
from .ranks.groups import among_members

_Task = tuple[Communicator, torch.Tensor, torch.Tensor | None, torch.futures.Future[object]]
Hook = Callable[[object, dist.GradBucket], torch.futures.Future[torch.Tensor]]  # type: ignore[name-defined]


def ddp_hook(
    plan: Plan | str | Path,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
    choose: str = "race",
    compress: str | None = None,
    error_feedback: bool = False,
    reduction: str = "hops",
) -> Hook:
    """A communication hook that averages gradients through an allreduce plan; the rest as for Communicator.

    Making it is collective over the ranks of `group` (default: all) alone. Buckets are handled in the order in which
    DDP hands them over, while backward goes on: by a thread on CPUs, on a stream of its own on GPUs. All ranks end with
    the same bits: plans whose schedules do not ensure that are refused. With `compress` gradients travel in another
    format, and `error_feedback` adds what that took away to the next step's (four bytes a parameter). The hook's
    `communicator` says what is used at which size, and what was sent. DDP leaves dividing to its hook, and this one
    divides by the number of ranks: join() with divide_by_initial_world_size=False changes nothing. Raises InputError
    and PlanMismatchError.
    """
    if error_feedback and compress is None:
        raise InputError("error_feedback without compress: nothing is lost that could be fed back; name a codec")
    own = None if group is None else among_members(group)
    communicator = Communicator(plan, own, timeout, choose, compress, reduction)
    if communicator.plan.collective.name != "allreduce":
        raise InputError(f"DDP needs a plan for allreduce, this one is for {communicator.plan.collective.name}")
    if compress is None:
        communicator.plan.check_same_bits()
    residuals = Residuals() if error_feedback else None
    on_gpu = communicator.device.type == "cuda"
    hook = _on_stream(communicator, residuals) if on_gpu else _on_thread(communicator, residuals)
    hook.communicator = communicator  # type: ignore[attr-defined]
    return hook


def _average(communicator: Communicator, tensor: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    """Divide first, as DDP itself does, so that half-precision sums do not overflow."""
    return communicator.allreduce(tensor.div_(communicator.size), residual=residual)


def _on_thread(communicator: Communicator, residuals: Residuals | None) -> Hook:
    waiting: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
    threading.Thread(target=_serve, args=(waiting,), name="topoplan-ddp", daemon=True).start()
    before: list[torch.futures.Future[object]] = []  # the last one that was given to the thread

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        tensor = bucket.buffer()
        in_backward = torch._C._current_graph_task_id() >= 0  # else it is a join() that has DDP call its hook
        done: torch.futures.Future[object] = torch.futures.Future()
        task = communicator, tensor, None if residuals is None else residuals.of(bucket), done
        if communicator.knows(tensor):
            if communicator.is_stock(tensor):
                return _started(communicator, tensor).then(_result_or_failure if in_backward else _result_or_raise)
            before[:] = [done]
            waiting.put(task)
        else:  # here and now: stock collectives, races among them, are made in one order on all ranks, by this thread
            for last in before:
                last.wait()
            _carry_out(*task)
        return done.then(_result_or_failure if in_backward else _result_or_raise)

    weakref.finalize(hook, waiting.put, None)  # the thread ends with the model that had the hook
    return hook


def _started(communicator: Communicator, tensor: torch.Tensor) -> torch.futures.Future[object]:
    """The stock allreduce, under way, several at a time: nothing is to be done for it here."""
    try:
        return communicator.start_stock(tensor.div_(communicator.size))
    except (TopoplanError, RuntimeError) as error:
        done: torch.futures.Future[object] = torch.futures.Future()
        done.set_result(error)
        return done


def _serve(waiting: "queue.SimpleQueue[_Task | None]") -> None:
    """Average one bucket after the other. Nothing is held on to between them: groups must be free to be destroyed."""
    while (task := waiting.get()) is not None:
        _carry_out(*task)
        del task


def _carry_out(
    communicator: Communicator,
    tensor: torch.Tensor,
    residual: torch.Tensor | None,
    done: torch.futures.Future[object],
) -> None:
    try:
        done.set_result(_average(communicator, tensor, residual))
    except Exception as error:  # handed to the training thread, which raises it
        done.set_result(error)


class _Failure:
    """What backward gets in place of a tensor when there is none. An exception raised while a future is chained would come
    out of backward as a RuntimeError with a C++ trace in its message; this comes out as the error itself: DDP, which cannot
    cast it to a tensor, puts it into words for its own error.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error


def _result_or_failure(done: torch.futures.Future[object]) -> torch.Tensor:
    result = done.value()
    return _Failure(result) if isinstance(result, BaseException) else result  # type: ignore[return-value]


def _result_or_raise(done: torch.futures.Future[object]) -> torch.Tensor:
    result = done.value()
    if isinstance(result, BaseException):
        raise result
    assert isinstance(result, torch.Tensor)
    return result


def _on_stream(communicator: Communicator, residuals: Residuals | None) -> Hook:
    stream = torch.cuda.Stream(communicator.device)  # type: ignore[no-untyped-call]

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        tensor = bucket.buffer()
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[communicator.device])
        stream.wait_stream(torch.cuda.current_stream(communicator.device))
        residual = None if residuals is None else residuals.of(bucket)
        with torch.cuda.stream(stream):
            tensor.record_stream(stream)
            done.set_result(_average(communicator, tensor, residual))
        return done

    return hook
