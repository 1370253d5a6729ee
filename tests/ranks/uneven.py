"""all_to_all_single with uneven parts on the backend "topo"."""

from __future__ import annotations

import patience
import torch
import torch.distributed as dist

import topoplan
from ranks.checks import refused
from ranks.topo_backend import end, start
from topoplan.extras import BY_NAME
from topoplan.runtime.backend.process_group import TopoGroup

# Rank 2 is hot; rank 1 sends nothing to rank 0.
EXPECTED = [[3, 5, 50, 2], [0, 4, 40, 6], [7, 1, 30, 9], [5, 5, 60, 5]]
WIDTH = 300


def exchange(sizes: list[list[int]], dtype: torch.dtype, *, asynchronous: bool) -> None:
    """Send parts of these sizes, and check what arrives."""
    rank = dist.get_rank()
    give, get = sizes[rank], [row[rank] for row in sizes]
    rows = torch.cat([torch.full((n,), 10.0 * rank + to) for to, n in enumerate(give)])
    given = rows.to(dtype)[:, None].repeat(1, WIDTH)
    got = torch.zeros(sum(get), WIDTH, dtype=dtype)
    work = dist.all_to_all_single(got, given, get, give, async_op=asynchronous)
    if asynchronous:
        work.wait()
    expected = torch.cat([torch.full((n,), 10.0 * of + rank) for of, n in enumerate(get)])
    assert torch.equal(got, expected.to(dtype)[:, None].expand(-1, WIDTH)), (got, expected)


def count_sent_bytes() -> int:
    """Return the bytes that this rank has sent by plans for uneven alltoalls."""
    group = dist.group.WORLD
    assert isinstance(group, TopoGroup)
    communicator = group.communicators["alltoallv", None, "cpu"]
    assert communicator is not None
    return communicator.wire_bytes


def others_are_members() -> list[bool]:
    """Return whether plans for uneven alltoalls are used before and after the ranks turn around.

    A group of fewer ranks goes by stock.
    """
    sizes = [[1, 2, 3, 4]] * 4
    start(plans="switch:4", expected_splits=sizes)
    handles: list[str] = [""] * 4
    dist.all_gather_object(handles, topoplan.reconfigure_handle())
    used = []
    for members in (handles, handles[::-1]):
        topoplan.reconfigure(members, patience.deadline(20))
        exchange(sizes, torch.float32, asynchronous=False)
        used.append(count_sent_bytes() > 0)
    if dist.get_rank() < 3:
        topoplan.reconfigure(handles[:0:-1], patience.deadline(20))
        exchange([[1, 2, 3]] * 3, torch.float32, asynchronous=False)
    return used


def announced_sizes_go_by_a_plan() -> list[int]:
    """Calls of other sizes are right, too; return the bytes sent by plans after each call."""
    rank, sent = dist.get_rank(), []
    start(plans="switch:4", expected_splits=EXPECTED[rank])
    other = [[size + (i == j == 3) for j, size in enumerate(row)] for i, row in enumerate(EXPECTED)]
    for sizes, dtype in [
        (EXPECTED, torch.float32),
        (other, torch.float32),
        (EXPECTED, torch.bfloat16),
        ([[2] * 4] * 4, torch.float32),
    ]:
        exchange(sizes, dtype, asynchronous=dtype == torch.bfloat16)
        sent.append(count_sent_bytes())
    for _ in range(18):  # after 16 in a row, only at every 16th call are sizes compared
        exchange(other, torch.float32, asynchronous=False)
    before = count_sent_bytes()
    for _ in range(16):
        exchange(EXPECTED, torch.float32, asynchronous=False)
    assert count_sent_bytes() > before
    end()
    start(plans="switch:4", choose="race", expected_splits=EXPECTED)
    for _ in range(12):
        exchange(EXPECTED, torch.float32, asynchronous=False)
    if BY_NAME["summaries"].is_here:
        assert "alltoall" in str(topoplan.summary())
    end()
    start(plans="switch:4", expected_splits=[[1, 2], [3, 4]])
    with refused("expected_splits of 2 rows for 4 ranks"):
        exchange(EXPECTED, torch.float32, asynchronous=False)
    for bad in ([[1, 2], [3]], [-1, 2], "no sizes", []):
        with refused("expected sizes of 0 or more"):
            topoplan.backend_options(expected_splits=bad)
    return sent
