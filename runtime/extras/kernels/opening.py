"""Decide whether kernels can run a group's schedules, and make their player if they can.

Before the first call the ranks check all that kernels need, and then the kernels themselves, by a
few small sums. A fault that shows only there (peer-to-peer that does not work though the driver
offers it, as with some IOMMUs) makes the group fall back to messages.

A player runs a program on fixed buffers.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import torch

from ....synth.ir.collective import Collective
from ...ranks.control import find_first
from ...ranks.faults import first_line
from ..one_sided.flat import build_flat
from ..one_sided.instructions import Mode

if TYPE_CHECKING:
    from ...ranks.transport import Transport
    from .player import KernelPlayer

log = logging.getLogger("topoplan")
# Ranks that share a GPU need this setting of torch: "1". It is for tests.
OVERLAPPING: Final = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
# The deadline of the sums that check the kernels. Ranks that share a GPU take turns of 2 ms.
_CHECK_TIMEOUT_S: Final = 20.0
# Slots, and a little more for counters and for the tables of programs (see memory.py).
_NEEDED_BYTES: Final = 72 << 20
# Elements of a rank's part in these sums: some that are no whole vector of 16 bytes.
_CHECKED_BLOCK: Final = 1003
# Different values there: a prime, so that no slot or slice begins with the same one as its peers'.
_VALUES: Final = 251
_MODES: Final[tuple[Mode, ...]] = ("pull", "push")


@dataclass(frozen=True)
class Opened:
    """The result of opening kernels for a transport: the `player`, or a text that says why not."""

    player: "KernelPlayer | str"


def open_kernels(transport: "Transport") -> "KernelPlayer | str":
    """Return the player for a transport's ranks, or a text why kernels cannot be used.

    Collective the first time: all ranks get a player, or all the same text.
    """
    opened = transport.find_part(Opened)
    if opened is None:
        opened = Opened(_open(transport))
        transport.attach(opened)
        if isinstance(opened.player, str):
            if transport.rank == 0:
                log.info("plans are not played by kernels: %s", opened.player)
        else:
            transport.control.on_timeout.append(opened.player.set_timeout)
    return opened.player


def _open(transport: "Transport") -> Any:
    control, group, device = transport.control, transport.group, transport.device
    why_not = _find_missing(control.count_hosts())
    gpu = None if why_not else torch.cuda.get_device_properties(device)
    answers = control.exchange((why_not, gpu and (str(gpu.uuid), gpu.multi_processor_count)))
    if first := find_first(why for why, _ in answers):
        return first
    uuids, multiprocessors = zip(*(gpu for _, gpu in answers), strict=True)
    if first := control.agree(_find_unreachable(device, uuids)):
        return first
    player: Any = None
    # Any error, here and in the check: the other ranks wait for the answer, and whoever has no
    # kernels has messages.
    try:
        from .memory import make_symmetric
        from .player import KernelPlayer

        smallest = min(multiprocessors)
        player = KernelPlayer(make_symmetric(group, device, smallest, timeout_s=_CHECK_TIMEOUT_S))
    except ImportError as error:
        why_not = f"Triton or symmetric memory cannot be imported: {first_line(error)}"
    except Exception as error:
        why_not = f"no symmetric memory: {first_line(error)}"
    if first := control.agree(why_not):
        return first
    if first := control.agree(_check_kernels(player, control.rank, control.size, device)):
        return first
    player.set_timeout(control.timeout_s)
    return player


def _find_missing(hosts: int) -> str | None:
    """Return what this rank lacks, None if nothing."""
    if hosts > 1:
        return "the ranks are on several hosts"
    if find_spec("triton") is None:
        return "Triton is not installed (pip install 'topoplan[kernels]')"
    return None


def _find_unreachable(device: torch.device, uuids: Sequence[str]) -> str | None:
    """Return why this rank's GPU cannot reach that of some rank, None if it reaches all."""
    visible = {
        str(torch.cuda.get_device_properties(number).uuid): number
        for number in range(torch.cuda.device_count())
    }
    own = str(torch.cuda.get_device_properties(device).uuid)
    if uuids.count(own) > 1 and os.environ.get(OVERLAPPING) != "1":
        return f"it shares its GPU with another rank ({OVERLAPPING}=1 allows it, for tests)"
    for rank, uuid in enumerate(uuids):
        if uuid not in visible:
            return f"it does not see the GPU of rank {rank} (CUDA_VISIBLE_DEVICES hides it)"
        if uuid != own and not torch.cuda.can_device_access_peer(device, visible[uuid]):
            return f"no peer-to-peer between its GPU and that of rank {rank}"
    # Torch would wait minutes for a rank that fails to allocate.
    if (free := torch.cuda.mem_get_info(device)[0]) < _NEEDED_BYTES:
        return f"{free >> 20} MiB of GPU memory are free; kernels take {_NEEDED_BYTES >> 20}"
    return None


def _check_kernels(player: Any, rank: int, ranks: int, device: torch.device) -> str | None:
    """Play small sums in both modes; return what went wrong on this rank, None if nothing."""
    numel = _CHECKED_BLOCK * ranks
    # Small whole numbers, whose sums over any number of ranks that share a host are exact.
    own = torch.arange(numel, device=device).remainder(_VALUES).to(torch.float32)
    try:
        for factor, schedule in enumerate(build_flat(Collective("allreduce", ranks)), 1):
            for mode in _MODES:
                loaded = player.load(schedule, numel, torch.float32, mode=mode, in_place=True)
                x = own * (factor * (rank + 1))
                player.launch(loaded, x, x)
                torch.cuda.synchronize(device)
                player.check()
                if not torch.equal(x, own * (factor * ranks * (ranks + 1) // 2)):
                    return f"a sum by kernels is wrong ({loaded.describe()}, {mode})"
    except Exception as error:  # such as that of a compiler that Triton starts
        return f"kernels fail: {first_line(error)}"
    return None
