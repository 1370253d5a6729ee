"""Allocate the memory in which ranks exchange data: windows, counters, and each rank's own state.

A rank's region has its counters first, one for each program of the grid and each rank, and then the
windows (buffers that other ranks read or write), two halves for each program. All regions are zeros
before the first call. On GPUs they are torch's symmetric memory; for kernels that are interpreted,
parts of one buffer that processes share.
"""

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _SymmetricMemory
from torch.distributed import _symmetric_memory as symmetric_memory

from ....topo.errors import InputError
from .tables import ERROR, FIRST_RUN, LIMIT, RUNS, Addresses

# Windows begin at multiples of this: more than a cache line of any GPU, and than ALIGNMENT elements
# of 8 bytes.
_REGION_ALIGNMENT_BYTES: Final = 512
# Enough programs to fill NVLink (NCCL takes 16 to 32 of a GPU's 132 multiprocessors).
DEFAULT_PROGRAMS: Final = 32
# A program may take all registers of a multiprocessor. A grid has at most one program for so many
# of them, so that kernels of several groups, whose order may differ between ranks, run at once.
_PART_OF_GPU: Final = 4
# For one program and half: with the programs above and both halves, 64 MiB a rank.
DEFAULT_HALF_BYTES: Final = 1 << 20
DEFAULT_TIMEOUT_S: Final = 600.0
# Interpreted kernels count the deadline in polls, which take at least this long.
_POLL_S: Final = 4e-4


@dataclass(frozen=True)
class Region:
    """The size of a rank's region, the same on all ranks.

    `ranks` is the number of ranks, `programs` that of Triton programs in the grid, `half_bytes` the
    size of half a window, of which each program has two.
    """

    ranks: int
    programs: int = DEFAULT_PROGRAMS
    half_bytes: int = DEFAULT_HALF_BYTES

    def __post_init__(self) -> None:
        if self.half_bytes % _REGION_ALIGNMENT_BYTES or self.half_bytes <= 0:
            raise InputError(
                f"half_bytes: {self.half_bytes}; expected a multiple of {_REGION_ALIGNMENT_BYTES}"
            )

    @property
    def counters_bytes(self) -> int:
        """The bytes of the counters, which is also the offset of the windows."""
        unit = _REGION_ALIGNMENT_BYTES
        return -(-8 * self.programs * self.ranks // unit) * unit

    @property
    def nbytes(self) -> int:
        """The bytes of a rank's region."""
        return self.counters_bytes + self.programs * 2 * self.half_bytes


@dataclass
class KernelMemory:
    """The memory that one rank's kernels use.

    `addresses` are those of all ranks' regions. `state` is read and written by kernels alone;
    `errors` is host memory, which the host can read at any time. Kernels wait at most `timeout_s`
    for other ranks. `owner` keeps the regions alive.
    """

    region: Region
    addresses: Addresses
    device: torch.device
    state: torch.Tensor
    errors: torch.Tensor
    timeout_s: float
    owner: Any


def make_symmetric(
    group: dist.ProcessGroup,
    device: torch.device,
    multiprocessors: int,
    *,
    programs: int = DEFAULT_PROGRAMS,
    half_bytes: int = DEFAULT_HALF_BYTES,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> KernelMemory:
    """Return memory on GPUs that reach each other's directly. Collective over the group.

    `multiprocessors` is that of the smallest GPU, since all ranks have the same grid; `programs`
    limits it. `half_bytes` is the size of half a window, `timeout_s` the longest wait for other
    ranks.
    """
    resident = max(1, multiprocessors // _PART_OF_GPU)
    region = Region(group.size(), min(programs, resident), half_bytes)
    own = _SymmetricMemory.empty_strided_p2p((region.nbytes,), (1,), torch.uint8, device)
    own.zero_()
    handle = symmetric_memory.rendezvous(own, group)
    starts = [
        handle.get_buffer(rank, (region.nbytes,), torch.uint8).data_ptr()
        for rank in range(region.ranks)
    ]
    # A peer's first signal must not come before the zeros.
    torch.cuda.synchronize(device)
    handle.barrier()
    torch.cuda.synchronize(device)
    errors = torch.zeros(region.programs * ERROR, dtype=torch.int64, pin_memory=True)
    state = _make_state(region, device, round(timeout_s * 1e9))
    return KernelMemory(
        region,
        _find_addresses(region, group.rank(), starts),
        device,
        state,
        errors,
        timeout_s,
        (own, handle),
    )


def make_on_one_gpu(
    ranks: int,
    device: torch.device,
    *,
    programs: int = DEFAULT_PROGRAMS,
    half_bytes: int = DEFAULT_HALF_BYTES,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[KernelMemory]:
    """Return the memory of all ranks in one process, which plays each rank on its own CUDA stream.

    For measurements: processes that share a GPU take turns, streams run together. `programs` limits
    the grid; `half_bytes` is the size of half a window, `timeout_s` the longest wait for other
    ranks.
    """
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    region = Region(ranks, min(programs, max(1, multiprocessors // ranks)), half_bytes)
    owned = [torch.zeros(region.nbytes, dtype=torch.uint8, device=device) for _ in range(ranks)]
    starts = [own.data_ptr() for own in owned]
    return [
        KernelMemory(
            region,
            _find_addresses(region, rank, starts),
            device,
            _make_state(region, device, round(timeout_s * 1e9)),
            torch.zeros(region.programs * ERROR, dtype=torch.int64, pin_memory=True),
            timeout_s,
            owned,
        )
        for rank in range(ranks)
    ]


def set_timeout(memory: KernelMemory, timeout_s: float) -> None:
    """Set how many seconds later kernels on a GPU wait for other ranks before they fail."""
    memory.state[LIMIT] = round(timeout_s * 1e9)
    memory.timeout_s = timeout_s


def make_shared(
    buffer: memoryview, rank: int, region: Region, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> KernelMemory:
    """Return rank `rank`'s memory in a buffer that processes share, for interpreted kernels.

    The buffer has room for the regions of all ranks, and is zeros before the first call. Raise
    InputError if it is too small.
    """
    if buffer.nbytes < region.ranks * region.nbytes:
        raise InputError(
            f"buffer: {buffer.nbytes} bytes; expected {region.ranks * region.nbytes}, "
            f"{region.nbytes} for each rank"
        )
    view = (ctypes.c_char * buffer.nbytes).from_buffer(buffer)
    base = ctypes.addressof(view)
    starts = [base + region.nbytes * number for number in range(region.ranks)]
    cpu = torch.device("cpu")
    return KernelMemory(
        region,
        _find_addresses(region, rank, starts),
        cpu,
        _make_state(region, cpu, round(timeout_s / _POLL_S)),
        torch.zeros(region.programs * ERROR, dtype=torch.int64),
        timeout_s,
        view,
    )


def _find_addresses(region: Region, rank: int, starts: list[int]) -> Addresses:
    return Addresses(
        rank,
        tuple(start + region.counters_bytes for start in starts),
        tuple(starts),
        region.half_bytes,
    )


def _make_state(region: Region, device: torch.device, limit: int) -> torch.Tensor:
    state = torch.full((RUNS + region.programs,), FIRST_RUN, dtype=torch.int64)
    state[:RUNS] = 0
    state[LIMIT] = limit
    return state.to(device)
