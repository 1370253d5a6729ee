"""Logs, tables and graph files as NCCL and its tests write them, made for the tests of
topo-judge.
"""

from __future__ import annotations

from collections.abc import Sequence

DEVICES = "#  Rank {0:>2} Group  0 Pid   1700 on     node07 device {0:>2} [0x{1:02x}] NVIDIA A40\n"
HEADER = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""

GRAPH = '<graphs version="1"><graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="12" speedinter="12" {}'.format(
    'latencyinter="0" typeintra="PHB" typeinter="PIX" '
    'samechannels="1"><channel>{}</channel></graph></graphs>'
)


def sign(rank: int, text: str, host: str = "node07") -> str:
    return f"{host}:{4000 + rank}:{5000 + rank} [{rank}] NCCL INFO {text}\n"


def write_log(
    rings: Sequence[Sequence[int]],
    trees: Sequence[Sequence[int]],
    *,
    commit: str = " commId 0xabc1",
) -> list[str]:
    """Return the lines of a log of one communicator, `trees` being parents."""
    n, count = len(rings[0]), len(rings)
    lines = ["NCCL version 2.21.5+cuda12.4\n"]
    for rank in range(n):
        place = f"comm 0x55{rank} rank {rank} nranks {n} cudaDev {rank} nvmlDev {rank} busId {(rank + 1) << 16:x}{commit}"
        lines.append(sign(rank, f"ncclCommInitRank {place} - Init START"))
    for c, order in enumerate(rings):
        lines.append(sign(0, f"Channel {c:02d}/{count:02d} :" + "".join(f" {r:4d}" for r in order)))
    for rank in range(n):
        entries = []
        for c, parents in enumerate(trees):
            children = [child for child, parent in enumerate(parents) if parent == rank]
            entries.append(
                f"[{c}] {'/'.join(map(str, (children + [-1] * 3)[:3]))}->{rank}->{parents[rank]}"
            )
        lines.append(sign(rank, "Trees " + " ".join(entries)))
    for rank in range(n):
        lines.append(
            sign(
                rank,
                f"Channel 00/0 : {rank}[{rank}] -> {(rank + 1) % n}[{(rank + 1) % n}] via "
                "P2P/CUMEM/read",
            )
        )
        place = f"comm 0x55{rank} rank {rank} nranks {n} cudaDev {rank} nvmlDev {rank} busId {(rank + 1) << 16:x}{commit}"
        lines.append(sign(rank, f"ncclCommInitRank {place} - Init COMPLETE"))
    return lines


def row(
    size: int,
    algbw: float,
    busbw: float,
    redop: str = "sum",
    root: str = "-1",
    errors: tuple[str, str] = ("0", "0"),
) -> str:
    half = f"{size / algbw * 1e-3:9.2f} {algbw:7.2f} {busbw:7.2f}"
    return f"{size:12d}  {size // 4:12d}     float  {redop:>6}  {root:>6}  {half} {errors[0]:>6}  {half} {errors[1]:>6}\n"


def write_table(
    busbw: float,
    ranks: int,
    collective: str = "allreduce",
    gpu: str = "NVIDIA A40",
    top: int = 1 << 30,
) -> str:
    """Return a table of nccl-tests from 1 MiB to `top` whose busbw rises to `busbw` GB/s."""
    factor = (2 if collective == "allreduce" else 1) * (ranks - 1) / ranks
    redop = "sum" if collective in ("allreduce", "reduce-scatter") else "none"
    rows, size = [], 1 << 20
    while size <= top:
        algbw = busbw / factor * size / (size + (4 << 20)) * (top + (4 << 20)) / top
        rows.append(row(size, algbw, algbw * factor, redop))
        size *= 2
    devices = "".join(DEVICES.format(i, 16 + i).replace("NVIDIA A40", gpu) for i in range(ranks))
    start = f"# nThread 1 nGpus {ranks} minBytes 1048576 maxBytes {top} step: 2(factor)\n#\n"
    return (
        f"{start}# Using devices\n{devices}#\n{HEADER}{''.join(rows)}# Avg bus bandwidth    : 1\n"
    )
