"""Write rank orders in the formats that launchers and scripts take.

Formats are Open MPI's hostfile and rankfile, Slurm's host file, torchrun's commands, the GPUs that
each host's ranks see, the tensor of a DeviceMesh, and JSON. A Placement has the order found, the
GPU of each rank, and the given one, in which the job would start without it.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from ....topo.derived.hosts import group_by_host
from ....topo.errors import InfeasibleError
from ....topo.graph import Topology
from ....topo.grouping import group_by_key
from .job import PLAN
from .placement import Placement

# torchrun's own default for rendezvous.
PORT = 29500
# Names that need no quotes in host files and in shells.
_PLAIN_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# CUDA numbers GPUs by speed unless set to use PCI addresses, as topologies do.
_ORDER = "CUDA_DEVICE_ORDER=PCI_BUS_ID"


@dataclass(frozen=True)
class RankLocation:
    """Where a rank runs: its host, its number among the host's ranks, and its GPU.

    `gpu` is the GPU's number on the host, `gpu_id` its id in the topology.
    """

    rank: int
    host: str
    local_rank: int
    gpu: int
    gpu_id: str


@dataclass(frozen=True)
class RankLocations:
    """Where each rank of a placement runs.

    `named` is True if the topology names its hosts.
    """

    placement: Placement
    locations: tuple[RankLocation, ...]
    named: bool

    @cached_property
    def by_host(self) -> dict[str, list[RankLocation]]:
        """The locations by the name of their host, hosts in the order of their first ranks."""
        return group_by_key((location.host, location) for location in self.locations)

    def list_hosts(self, form: str) -> list[tuple[str, list[RankLocation]]]:
        """Return (host, locations of its ranks) for each host, after checking the hosts' names.

        Raise InfeasibleError, which names the format `form`, if a name is not a plain word to files
        and shells.
        """
        for host in self.by_host:
            if not _PLAIN_HOST.fullmatch(host):
                raise InfeasibleError(
                    f"{form}: {host!r:.60} is no name that a launcher takes; name hosts in the "
                    "topology (a GPU's host), or write json",
                    parameter="format",
                )
        return list(self.by_host.items())

    def refuse_interleaved(self, form: str, why: str, instead: str) -> None:
        """Raise InfeasibleError if the ranks of a host are not consecutive.

        The message says that `form` cannot express this, `why`, and to write `instead`.
        """
        for locations in self.by_host.values():
            for before, after in pairwise(locations):
                if after.rank != before.rank + 1:
                    raise InfeasibleError(
                        f"{form}: {why}, and of {before.host}'s ranks {before.rank} and "
                        f"{after.rank} others' lie between; write {instead}",
                        parameter="format",
                    )


def locate_ranks(topology: Topology, placement: Placement) -> RankLocations:
    """Return the host and the GPU of each rank of a placement on `topology`.

    Hosts that the topology does not name are called box0, box1 ...; a single one is localhost.
    """
    devices = [topology.by_id[gpu] for gpu in topology.ranks]
    blocks = group_by_host(devices)
    names = [devices[members[0]].extra.get("host") for members in blocks]
    host_of = {number: block for block, members in enumerate(blocks) for number in members}
    locations: list[RankLocation] = []
    used = [0] * len(blocks)
    for rank, number in enumerate(placement.order):
        block = host_of[number]
        made_up = "localhost" if len(blocks) == 1 else f"box{block}"
        host = made_up if names[block] is None else str(names[block]) or made_up
        gpu = blocks[block].index(number)
        locations.append(RankLocation(rank, host, used[block], gpu, topology.ranks[number]))
        used[block] += 1
    return RankLocations(placement, tuple(locations), None not in names or len(blocks) == 1)


def show_ranks(ranks: Iterable[int]) -> str:
    """Format ranks as ranges: 0-3,8."""
    runs = [[x for _, x in run] for _, run in groupby(enumerate(ranks), lambda x: x[1] - x[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def write_hostfile(ranks: RankLocations, file: str) -> str:
    """Return Open MPI's hostfile: hosts in order with their slots.

    `file` is its future name, for a comment. Raise InfeasibleError if hosts' ranks are interleaved.
    """
    ranks.refuse_interleaved(
        "hostfile", "Open MPI fills one host after the other", "rankfile or slurm"
    )
    return _join(
        f"# mpirun --hostfile {shlex.quote(file)} -np {len(ranks.locations)} --map-by slot COMMAND",
        *_comment_gpus(ranks),
        *(f"{host} slots={len(own)}" for host, own in ranks.list_hosts("hostfile")),
    )


def write_rankfile(ranks: RankLocations, file: str) -> str:
    """Return Open MPI's rankfile: each rank's host, and a core of its own there.

    `file` is its future name, for a comment.
    """
    quoted, count = shlex.quote(file), len(ranks.locations)
    slots = ",".join(f"{host}:{len(own)}" for host, own in ranks.list_hosts("rankfile"))
    return _join(
        f"# Open MPI 4: mpirun -np {count} --rankfile {quoted} COMMAND",
        f"# Open MPI 5: mpirun -np {count} --host {slots} --map-by rankfile:file={quoted} COMMAND",
        *_comment_gpus(ranks),
        *(f"rank {x.rank}={x.host} slot={x.local_rank}" for x in ranks.locations),
    )


def write_slurm(ranks: RankLocations, file: str) -> str:
    """Return the file for SLURM_HOSTFILE: the host of each task in turn.

    It has no comments because older versions of srun refuse them; `file` is not used.
    """
    ranks.list_hosts("slurm")
    return _join(*(location.host for location in ranks.locations))


def list_slurm_hints(ranks: RankLocations, file: str) -> list[str]:
    """Return hints for the user, and last the srun command that uses the host file `file`."""
    orders = {_list_gpus(own) for own in ranks.by_host.values()}
    gpus, command = min(orders), "COMMAND"
    hints = [line.removeprefix("# ") for line in _comment_made_up(ranks)]
    if len(orders) > 1:
        command = "bash -c '. ./gpus.sh; exec COMMAND'"
        hints.append(
            "ranks of different hosts see GPUs in different orders: the format "
            "cuda-visible-devices writes them, here to gpus.sh"
        )
    elif not _is_in_order(gpus):
        command = f"env {_ORDER} CUDA_VISIBLE_DEVICES={gpus} COMMAND"
    # With the distribution "arbitrary", srun takes the hosts of SLURM_HOSTFILE in turn.
    return [
        *hints,
        f"SLURM_HOSTFILE={shlex.quote(file)} srun --nodes={len(ranks.by_host)} "
        f"--ntasks={len(ranks.locations)} --distribution=arbitrary {command}",
    ]


def write_torchrun(ranks: RankLocations, file: str) -> str:
    """Return a text with the torchrun command for each host; `file` is not used.

    Raise InfeasibleError if hosts' ranks are interleaved.
    """
    ranks.refuse_interleaved(
        "torchrun",
        "torchrun numbers ranks by node and then by local rank",
        "slurm or rankfile, or device-mesh",
    )
    hosts = ranks.list_hosts("torchrun")
    names = [host for host, _ in hosts]
    lines = _comment_made_up(ranks)
    if len(hosts) > 1 and names == sorted(names):
        lines.append(
            "# these names sort as the nodes count, so that a rendezvous by c10d, which sorts "
            f"addresses, gives the same: --rdzv-backend=c10d --rdzv-endpoint={names[0]}:{PORT} "
            "--rdzv-id=JOB --rdzv-conf=is_host=1 --local-addr=HOST, with is_host=0 on all but "
            f"{names[0]}"
        )
    elif len(hosts) > 1:
        lines.append(
            "# keep to --node-rank: a rendezvous by c10d numbers nodes by the sorted texts of "
            "their --local-addr, and these names sort otherwise"
        )
    for node, (host, own) in enumerate(hosts):
        rendezvous = f"--node-rank={node} --master-addr={names[0]} --master-port={PORT}"
        nodes = f"--nnodes={len(hosts)} --nproc-per-node={len(own)}"
        lines += [
            f"# on {host}, ranks {show_ranks(x.rank for x in own)}:",
            f"{_ORDER} CUDA_VISIBLE_DEVICES={_list_gpus(own)} torchrun {nodes} "
            f"{rendezvous if len(hosts) > 1 else '--standalone'} SCRIPT",
        ]
    return _join(*lines)


def write_visible_devices(ranks: RankLocations, file: str) -> str:
    """Return a shell script that sets CUDA_VISIBLE_DEVICES to a host's GPUs in its ranks' order.

    It is to be sourced on each host; `file` is its future name, for a comment.
    """
    hosts = ranks.list_hosts("cuda-visible-devices")
    head = [f"# . {shlex.quote(file)}", *_comment_made_up(ranks), f"export {_ORDER}"]
    if len(hosts) == 1:
        return _join(*head, f"export CUDA_VISIBLE_DEVICES={_list_gpus(hosts[0][1])}")
    return _join(
        *head,
        'case "$(hostname)" in',
        *(
            f"{host} | {host}.*) export CUDA_VISIBLE_DEVICES={_list_gpus(own)} ;; "
            f"# ranks {show_ranks(x.rank for x in own)}"
            for host, own in hosts
        ),
        '*) echo "$(hostname): no ranks of this job" >&2 ;;',
        "esac",
    )


def _list_gpus(locations: Sequence[RankLocation]) -> str:
    return ",".join(str(location.gpu) for location in locations)


def _is_in_order(gpus: str) -> bool:
    """Return whether the ranks of a host see these GPUs by default."""
    return gpus == ",".join(map(str, range(gpus.count(",") + 1)))


def _comment_made_up(ranks: RankLocations) -> list[str]:
    return (
        []
        if ranks.named
        else ["# the topology does not name its hosts: replace box0 and the others"]
    )


def _comment_gpus(ranks: RankLocations) -> list[str]:
    """Return comments on the GPUs that each host's ranks must see, unless they do by default."""
    return _comment_made_up(ranks) + [
        f"# {host}: {_ORDER} CUDA_VISIBLE_DEVICES={_list_gpus(own)}, the local rank's number in it"
        for host, own in ranks.by_host.items()
        if not _is_in_order(_list_gpus(own))
    ]


def _join(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def make_mesh(placement: Placement) -> list[Any]:
    """Return the ranks of a DeviceMesh as a nested list, for a job started in the given order.

    Each position of the job's mesh gets the rank that has its GPU in the given order. torch sorts
    the ranks of a DeviceMesh's groups, while DTensor takes positions in the mesh for positions in
    groups. So ranks must ascend along every dimension. Its positions are renumbered if that changes
    no time: rings may begin anywhere, alltoall and topoplan's plans have no order. Raise
    InfeasibleError if ranks still do not ascend.
    """
    rank_of = {gpu: rank for rank, gpu in enumerate(placement.given)}
    dimensions = placement.job.dimensions
    mesh = np.array([rank_of[gpu] for gpu in placement.order], dtype=np.int64)
    mesh = mesh.reshape([size for _, size in dimensions])
    for axis, (name, _) in enumerate(dimensions):
        line = np.moveaxis(mesh, axis, 0).reshape(mesh.shape[axis], -1)[:, 0]
        collectives = {t.collective for t in placement.job.traffics if t.dimension == name}
        if "sendrecv" in collectives:
            continue
        if collectives <= {"alltoall"} or placement.target == PLAN:
            mesh = np.take(mesh, line.argsort(), axis=axis)
        else:
            mesh = np.roll(mesh, -int(line.argmin()), axis=axis)
    for axis, (name, _) in enumerate(dimensions):
        if (np.diff(mesh, axis=axis) < 0).any():
            raise InfeasibleError(
                "device-mesh: torch sorts the ranks of a DeviceMesh's groups, and in this order "
                f"those of {name} do not ascend; start ranks in this order instead (slurm, "
                "rankfile, torchrun)",
                parameter="format",
            )
    return list(mesh.tolist())


def write_device_mesh(ranks: RankLocations, file: str) -> str:
    """Return Python code that makes the DeviceMesh of the placed job.

    For scripts that start their ranks in the given order. Raise InfeasibleError if no DeviceMesh
    can express the placement; `file` is not used.
    """
    return (
        "# ranks count as the job is started now, in the given order\n"
        "import torch\n"
        "from torch.distributed.device_mesh import DeviceMesh\n\n"
        f"MESH = {make_mesh(ranks.placement)}\n"
        'mesh = DeviceMesh("cuda", torch.tensor(MESH), '
        f"mesh_dim_names={tuple(dict(ranks.placement.job.dimensions))!r})\n"
    )


def _write_json(ranks: RankLocations, file: str) -> str:
    places = list(map(vars, ranks.locations))
    return json.dumps({**ranks.placement.to_json(), "places": places}) + "\n"


_WRITERS: Mapping[str, Callable[[RankLocations, str], str]] = {
    "hostfile": write_hostfile,
    "rankfile": write_rankfile,
    "slurm": write_slurm,
    "torchrun": write_torchrun,
    "cuda-visible-devices": write_visible_devices,
    "device-mesh": write_device_mesh,
    "json": _write_json,
}
FORMATS = tuple(_WRITERS)


def write_order(form: str, topology: Topology, placement: Placement, file: str = "FILE") -> str:
    """Return a placement in one of FORMATS.

    `file` is the future name of the file, for lines that explain its use. Raise InfeasibleError if
    the format cannot express the order.
    """
    return _WRITERS[form](locate_ranks(topology, placement), file)


def list_hints(
    form: str, topology: Topology, placement: Placement, file: str = "FILE"
) -> list[str]:
    """Return usage lines for a file that cannot contain them: the srun command for Slurm's.

    The file has the `placement` in the format `form`, and will be called `file`. For all other
    formats the list is empty.
    """
    return list_slurm_hints(locate_ranks(topology, placement), file) if form == "slurm" else []
