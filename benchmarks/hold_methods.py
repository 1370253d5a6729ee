"""Every collective and point-to-point method of a process group that a Python program can reach."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_PREFIX = "_do_"
_BARRIER_TIMEOUT = timedelta(seconds=300)


class Calls:
    """One rank's calls on the default group; tensors have `numel` elements, or that a member."""

    def __init__(self, numel: int) -> None:
        import torch
        import torch.distributed as dist
        import torch.distributed._functional_collectives as functional

        self.dist, self.functional = dist, functional
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.group: Any = dist.group.WORLD
        self.peer = (self.rank + 1) % self.world
        self.source = (self.rank - 1) % self.world
        self.even = self.rank % 2 == 0
        self.tensor, self.other = torch.ones(numel), torch.ones(numel)
        self.whole, self.whole_out = torch.ones(numel * self.world), torch.ones(numel * self.world)

    @classmethod
    def list_methods(cls) -> list[str]:
        """Return the names of all methods."""
        return [name.removeprefix(_PREFIX) for name in vars(cls) if name.startswith(_PREFIX)]

    def call(self, method: str) -> None:
        """Call a method once, and wait for its result."""
        getattr(self, _PREFIX + method)()

    @property
    def parts(self) -> list[torch.Tensor]:
        """Parts of a whole, one a member."""
        return list(self.whole.chunk(self.world))

    @property
    def parts_out(self) -> list[torch.Tensor]:
        """Parts of another whole, one a member."""
        return list(self.whole_out.chunk(self.world))

    def _at_root(self, value: Any) -> Any:
        return value if self.rank == 0 else None

    # torch.distributed's functions

    def _do_barrier(self) -> None:
        self.dist.barrier()

    def _do_barrier_async(self) -> None:
        self.dist.barrier(async_op=True).wait()

    def _do_all_reduce(self) -> None:
        self.dist.all_reduce(self.tensor, self.dist.ReduceOp.MAX)

    def _do_all_reduce_coalesced(self) -> None:
        self.dist.all_reduce_coalesced([self.tensor, self.other], self.dist.ReduceOp.MAX)

    def _do_broadcast(self) -> None:
        self.dist.broadcast(self.tensor, 0)

    def _do_reduce(self) -> None:
        self.dist.reduce(self.tensor, 0, self.dist.ReduceOp.MAX)

    def _do_all_gather(self) -> None:
        self.dist.all_gather(self.parts_out, self.tensor)

    def _do_all_gather_coalesced(self) -> None:
        self.dist.all_gather_coalesced([[part] for part in self.parts_out], [self.tensor])

    def _do_all_gather_into_tensor(self) -> None:
        self.dist.all_gather_into_tensor(self.whole_out, self.tensor)

    def _do_reduce_scatter(self) -> None:
        self.dist.reduce_scatter(self.tensor, self.parts, self.dist.ReduceOp.MAX)

    def _do_reduce_scatter_tensor(self) -> None:
        self.dist.reduce_scatter_tensor(self.tensor, self.whole, self.dist.ReduceOp.MAX)

    def _do_all_to_all(self) -> None:
        self.dist.all_to_all(self.parts_out, self.parts)

    def _do_all_to_all_single(self) -> None:
        self.dist.all_to_all_single(self.whole_out, self.whole)

    def _do_gather(self) -> None:
        self.dist.gather(self.tensor, self._at_root(self.parts_out), 0)

    def _do_scatter(self) -> None:
        self.dist.scatter(self.tensor, self._at_root(self.parts), 0)

    def _do_monitored_barrier(self) -> None:
        self.group.monitored_barrier(_BARRIER_TIMEOUT, False)

    def _do_all_gather_object(self) -> None:
        self.dist.all_gather_object([None] * self.world, {"rank": self.rank})

    def _do_gather_object(self) -> None:
        self.dist.gather_object(self.rank, self._at_root([None] * self.world), 0)

    def _do_broadcast_object_list(self) -> None:
        self.dist.broadcast_object_list([self.rank], 0)

    def _do_scatter_object_list(self) -> None:
        self.dist.scatter_object_list([None], list(range(self.world)), 0)

    def _do_send_recv(self) -> None:
        self._in_turns(
            lambda: self.dist.send(self.tensor, self.peer),
            lambda: self.dist.recv(self.other, self.source),
        )

    def _do_recv_anysource(self) -> None:
        self._in_turns(
            lambda: self.dist.send(self.tensor, self.peer),
            lambda: self.dist.recv(self.other),
        )

    def _do_send_object_list(self) -> None:
        self._in_turns(
            lambda: self.dist.send_object_list([self.rank], self.peer),
            lambda: self.dist.recv_object_list([None], self.source),
        )

    def _do_isend_irecv(self) -> None:
        works = [self.dist.isend(self.tensor, self.peer), self.dist.irecv(self.other, self.source)]
        for work in works:
            work.wait()  # type: ignore[union-attr]

    def _do_batch_isend_irecv(self) -> None:
        send = self.dist.P2POp(self.dist.isend, self.tensor, self.peer)
        receive = self.dist.P2POp(self.dist.irecv, self.other, self.source)
        for work in self.dist.batch_isend_irecv([send, receive]):
            work.wait()

    def _in_turns(self, send: Callable[[], Any], receive: Callable[[], Any]) -> None:
        """Send and receive; even ranks send first, since a send may wait for its receiver."""
        for call in (send, receive) if self.even else (receive, send):
            call()

    def _do_new_group(self) -> None:
        group = self.dist.new_group()
        self.dist.barrier(group)
        self.dist.destroy_process_group(group)

    # the process group's own methods, and works

    def _do_group_allreduce(self) -> None:
        self.group.allreduce([self.tensor]).wait()

    def _do_group_broadcast(self) -> None:
        self.group.broadcast(self.tensor, 0).wait()

    def _do_group_send_recv(self) -> None:
        works = [
            self.group.send([self.tensor], self.peer, 0),
            self.group.recv([self.other], self.source, 0),
        ]
        for work in works:
            work.wait()

    def _do_group_alltoall(self) -> None:
        self.group.alltoall(self.parts_out, self.parts).wait()

    def _do_group_allgather_into_tensor_coalesced(self) -> None:
        self.group.allgather_into_tensor_coalesced([self.whole_out], [self.tensor]).wait()

    def _do_group_reduce_scatter_tensor_coalesced(self) -> None:
        self.group.reduce_scatter_tensor_coalesced([self.tensor], [self.whole]).wait()

    def _do_sequence_number(self) -> None:
        self.group._get_sequence_number_for_group()

    def _do_future(self) -> None:
        work = self.dist.all_reduce(self.tensor, self.dist.ReduceOp.MAX, async_op=True)
        work.get_future().then(lambda future: future.value()).wait()

    # functional collectives

    def _do_functional_all_reduce(self) -> None:
        self._await(self.functional.all_reduce(self.tensor, "max", self.group))

    def _do_functional_all_reduce_coalesced(self) -> None:
        tensors = [self.tensor, self.other]
        self._await(*self.functional.all_reduce_coalesced(tensors, "max", self.group))

    def _do_functional_broadcast(self) -> None:
        self._await(self.functional.broadcast(self.tensor, 0, self.group))

    def _do_functional_all_gather(self) -> None:
        self._await(self.functional.all_gather_tensor(self.tensor, 0, self.group))

    def _do_functional_all_gather_coalesced(self) -> None:
        tensors = [self.tensor, self.other]
        self._await(*self.functional.all_gather_into_tensor_coalesced(tensors, self.group))

    def _do_functional_reduce_scatter(self) -> None:
        self._await(self.functional.reduce_scatter_tensor(self.whole, "max", 0, self.group))

    def _do_functional_reduce_scatter_coalesced(self) -> None:
        scattered = self.functional.reduce_scatter_tensor_coalesced(
            [self.whole, self.whole_out], "max", [0, 0], self.group
        )
        self._await(*scattered)

    def _do_functional_all_to_all(self) -> None:
        self._await(self.functional.all_to_all_single(self.whole, None, None, self.group))

    def _do_functional_permute(self) -> None:
        shifted = [(rank + 1) % self.world for rank in range(self.world)]
        self._await(self.functional.permute_tensor(self.tensor, shifted, self.group))

    def _await(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            self.functional.wait_tensor(tensor)  # type: ignore[no-untyped-call]
