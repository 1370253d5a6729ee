"""What the ranks of a group tell each other beside the messages of plans.

They agree on values, find whether all of them have something, number their calls, keep deadlines,
and find who is to blame when one is missed. Links carry plans' messages; they may be opened later,
or replaced, while the control stays.
"""

import pickle
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import AllgatherOptions

from .faults import Faults, grace_s
from .machine import are_crowded, count_cores, find_own_cores


class Control:
    """Agreements, deadlines and numbers of calls among the ranks of `group`.

    `device` is where its tensors must be. `faults` numbers calls, keeps their deadlines, and finds
    the rank to blame. `timeout` is the time limit of a call; with `owns_group` it is that of the
    group's own collectives too.
    """

    def __init__(
        self,
        group: Any,
        device: torch.device,
        timeout: timedelta,
        faults: Faults,
        *,
        owns_group: bool,
    ) -> None:
        self.group, self.device, self.faults = group, device, faults
        self.rank: int = group.rank()
        self.size: int = group.size()
        self.timeout_s = timeout.total_seconds()
        self.on_timeout: list[Callable[[float], object]] = []
        """Called with the seconds of a new deadline of calls."""
        self._owns_group = owns_group
        self._cores_of_ranks: list[tuple[str, frozenset[int]]] | None = None

    @property
    def labels(self) -> Sequence[int]:
        """The ranks' numbers in plans and errors, in the order of the group."""
        return self.faults.ranks

    @property
    def label(self) -> int:
        """This rank's number in plans and errors."""
        return self.faults.rank

    def number_of(self, label: int) -> int:
        """Return the rank in the group of the rank that plans and errors call `label`."""
        return self.labels.index(label)

    def exchange(self, value: object) -> list[Any]:
        """Return the values that all ranks pass, by rank. Collective.

        Raise RuntimeError if a rank does not answer.
        """
        return gather_objects(self.group, self.size, self.device, value)

    def agree(self, why_not: str | None) -> str | None:
        """Return the first rank's reason against something, None if no rank has one.

        `why_not` is this rank's reason, None if it has none. The answer, with the rank's number, is
        the same on all ranks. Collective; raise RuntimeError if a rank does not answer.
        """
        return find_first(self.exchange(why_not))

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of this rank's later calls, and of agreements over its own group.

        A group of the user's keeps its own.
        """
        self.faults.set_timeout(timeout)
        self.timeout_s = timeout.total_seconds()
        for tell in self.on_timeout:
            tell(self.timeout_s)
        if self._owns_group:
            self.group._get_backend(self.device)._set_default_timeout(
                timeout - timedelta(seconds=grace_s(timeout))
            )

    def count_hosts(self) -> int:
        """Return the number of the ranks' hosts. Collective the first time."""
        return len({host for host, _ in self.find_cores_of_ranks()})

    def find_cores_of_hosts(self) -> dict[str, int]:
        """Return the number of cores that the ranks may use, by host name.

        Collective the first time.
        """
        return count_cores(self.find_cores_of_ranks())

    def has_crowded_host(self) -> bool:
        """Return whether a host has more ranks than cores. Collective the first time."""
        return are_crowded(self.find_cores_of_ranks())

    def find_cores_of_ranks(self) -> list[tuple[str, frozenset[int]]]:
        """Return each rank's host and the numbers of the cores that it may use.

        Collective the first time.
        """
        # No functools.cached_property: before Python 3.12 that holds one lock for all groups while
        # it waits for ranks.
        if self._cores_of_ranks is None:
            self._cores_of_ranks = self.exchange(find_own_cores())
        return self._cores_of_ranks


def find_first(reasons: Iterable[str | None]) -> str | None:
    """Return the first rank's reason, with its number, or None if no rank has one.

    `reasons` has one item per rank, in order.
    """
    return next((f"rank {rank}: {why}" for rank, why in enumerate(reasons) if why), None)


def gather_objects(group: Any, size: int, device: torch.device, value: object) -> list[Any]:
    """Return the values that the `size` ranks of a group pass, by rank. Collective.

    Values are pickled; `device` is where the group's tensors must be. Raise RuntimeError if a rank
    does not answer.
    """
    data = pickle.dumps(value)
    lengths = _gather(group, torch.tensor([len(data)], device=device), size).tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = _gather(group, padded.to(device), size).cpu().view(size, -1)
    return [
        pickle.loads(row[:length].numpy().tobytes())
        for row, length in zip(rows, lengths, strict=True)
    ]


def _gather(group: Any, tensor: torch.Tensor, size: int) -> torch.Tensor:
    result = tensor.new_empty(size * tensor.numel())
    # The new name is torch 2.13's.
    gather = getattr(group, "all_gather_single", None) or group._allgather_base
    gather(result, tensor, AllgatherOptions()).wait()
    return result
