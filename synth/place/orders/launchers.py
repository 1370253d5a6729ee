"""Orders for those who start ranks: Open MPI's hostfile and rankfile, Slurm's host file, lines of
torchrun, GPUs a host.
"""

from __future__ import annotations

import re
import shlex

from ....topo.errors import InfeasibleError
from .seats import Seat, Seats, show_ranks

PORT = 29500
_PLAIN_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ORDER = "CUDA_DEVICE_ORDER=PCI_BUS_ID"


def write_hostfile(seats: Seats, file: str) -> str:
    """Return Open MPI's hostfile: hosts in order with their slots. InfeasibleError where hosts'
    ranks are interleaved.
    """
    _refuse_interleaved(
        seats, "hostfile", "Open MPI fills one host after the other", "rankfile or slurm"
    )
    lines = [
        f"# mpirun --hostfile {shlex.quote(file)} -np {len(seats.seats)} --map-by slot COMMAND",
        *_comment_gpus(seats),
    ]
    lines += [f"{host} slots={len(there)}" for host, there in _hosts(seats, "hostfile")]
    return _join(lines)


def write_rankfile(seats: Seats, file: str) -> str:
    """Return Open MPI's rankfile: each rank's host, and a core of its own there."""
    quoted = shlex.quote(file)
    slots = ",".join(f"{host}:{len(there)}" for host, there in _hosts(seats, "rankfile"))
    lines = [
        f"# Open MPI 4: mpirun -np {len(seats.seats)} --rankfile {quoted} COMMAND",
        f"# Open MPI 5: mpirun -np {len(seats.seats)} --host {slots} --map-by "
        f"rankfile:file={quoted} COMMAND",
        *_comment_gpus(seats),
    ]
    lines += [f"rank {seat.rank}={seat.host} slot={seat.local_rank}" for seat in seats.seats]
    return _join(lines)


def write_slurm(seats: Seats, file: str) -> str:
    """Return the file for SLURM_HOSTFILE: the host of each task in turn, and nothing else: older
    srun take no comments.
    """
    _hosts(seats, "slurm")
    return _join([seat.host for seat in seats.seats])


def list_slurm_hints(seats: Seats, file: str) -> list[str]:
    """Return the line of srun for the file, and what else must be known."""
    alike = {tuple(seat.gpu for seat in there) for there in seats.by_host.values()}
    gpus = alike.pop()
    command = "COMMAND"
    hints = [line.removeprefix("# ") for line in _comment_made_up(seats)]
    if alike:
        command = "bash -c '. ./gpus.sh; exec COMMAND'"
        hints.append(
            "ranks of different hosts see GPUs in different orders: --format cuda-visible-devices "
            "-o gpus.sh writes them"
        )
    elif gpus != tuple(range(len(gpus))):
        command = f"env {_ORDER} CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))} COMMAND"
    counts = f"--nodes={len(seats.by_host)} --ntasks={len(seats.seats)}"
    return [
        *hints,
        f"SLURM_HOSTFILE={shlex.quote(file)} srun {counts} --distribution=arbitrary {command}",
    ]


def write_torchrun(seats: Seats, file: str) -> str:
    """Return a line of torchrun for each host. Raises InfeasibleError where hosts' ranks are
    interleaved.
    """
    _refuse_interleaved(
        seats,
        "torchrun",
        "torchrun numbers ranks by node and then by local rank",
        "slurm or rankfile, or device-mesh",
    )
    hosts = _hosts(seats, "torchrun")
    names = [host for host, _ in hosts]
    head = names[0]
    lines = []
    if len(hosts) > 1 and names == sorted(names):
        lines.append(
            "# these names sort as the nodes count, so that a rendezvous by c10d, which sorts "
            "addresses, gives the same: "
            f"--rdzv-backend=c10d --rdzv-endpoint={head}:{PORT} --rdzv-id=JOB "
            "--rdzv-conf=is_host=1 --local-addr=HOST, "
            f"with is_host=0 on all but {head}"
        )
    elif len(hosts) > 1:
        lines.append(
            "# keep to --node-rank: a rendezvous by c10d numbers nodes by the sorted texts of "
            "their --local-addr, and these "
            "names sort otherwise"
        )
    for node, (host, there) in enumerate(hosts):
        ranks = show_ranks([seat.rank for seat in there])
        lines.append(f"# on {host}, ranks {ranks}:")
        gpus = ",".join(str(seat.gpu) for seat in there)
        rendezvous = (
            f"--node-rank={node} --master-addr={head} --master-port={PORT}"
            if len(hosts) > 1
            else "--standalone"
        )
        started = (
            f"torchrun --nnodes={len(hosts)} --nproc-per-node={len(there)} {rendezvous} SCRIPT"
        )
        lines.append(f"{_ORDER} CUDA_VISIBLE_DEVICES={gpus} {started}")
    return _join([*_comment_made_up(seats), *lines])


def write_visible_devices(seats: Seats, file: str) -> str:
    """Return a shell script to be sourced on each host: its GPUs in the order of its ranks."""
    hosts = _hosts(seats, "cuda-visible-devices")
    lines = [f"# . {shlex.quote(file)}", *_comment_made_up(seats), f"export {_ORDER}"]
    if len(hosts) == 1:
        lines.append(
            f"export CUDA_VISIBLE_DEVICES={','.join(str(seat.gpu) for seat in hosts[0][1])}"
        )
        return _join(lines)
    lines.append('case "$(hostname)" in')
    for host, there in hosts:
        gpus, ranks = (
            ",".join(str(seat.gpu) for seat in there),
            show_ranks([seat.rank for seat in there]),
        )
        lines.append(f"{host} | {host}.*) export CUDA_VISIBLE_DEVICES={gpus} ;; # ranks {ranks}")
    lines += ['*) echo "$(hostname): no ranks of this job" >&2 ;;', "esac"]
    return _join(lines)


def _hosts(seats: Seats, form: str) -> list[tuple[str, list[Seat]]]:
    """Return the hosts with their seats. InfeasibleError for a name that is no plain word in files
    and shells.
    """
    for host in seats.by_host:
        if not _PLAIN_HOST.fullmatch(host):
            raise InfeasibleError(
                f"--format {form}: {host!r:.60} is no name that a launcher takes; name hosts in "
                "the topology (a GPU's "
                "host), or use --format json"
            )
    return list(seats.by_host.items())


def _refuse_interleaved(seats: Seats, form: str, why: str, instead: str) -> None:
    found = seats.find_interleaved()
    if found is not None:
        before, after = found
        raise InfeasibleError(
            f"--format {form}: {why}, and of {before.host}'s ranks {before.rank} and {after.rank} "
            "others' lie between; "
            f"use --format {instead}"
        )


def _comment_made_up(seats: Seats) -> list[str]:
    return (
        []
        if seats.named
        else ["# the topology does not name its hosts: replace box0 and the others"]
    )


def _comment_gpus(seats: Seats) -> list[str]:
    """Return lines that say which GPUs each host's ranks see, where that is not what they take
    anyhow.
    """
    lines = _comment_made_up(seats)
    for host, there in seats.by_host.items():
        gpus = [seat.gpu for seat in there]
        if gpus != list(range(len(gpus))):
            lines.append(
                f"# {host}: {_ORDER} CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}, the local "
                "rank's number in it"
            )
    return lines


def _join(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
