"""Meshes whose groups have plans in one file: collectives of torch.distributed use them."""

from __future__ import annotations

import logging

import patience
import torch
import torch.distributed as dist
from rank_process import Events
from torch.distributed.device_mesh import DeviceMesh

import topoplan
from topoplan.runtime.environment import find_cache_folder
from topoplan.runtime.extras.joint import choices
from topoplan.runtime.extras.joint.groups import JointGroups
from topoplan.runtime.extras.joint.race import race_jointly
from topoplan.runtime.ranks.transport import Transport
from topoplan.synth.extras.joint.plan import JointPlan


def groups_and_calls(paths: list[str]) -> list[list[str]]:
    """Return the groups of a mesh, and what runs calls on it by each of several joint plans."""
    return [list_groups(), *map(calls_by_a_joint_plan, paths)]


def list_groups() -> list[str]:
    """Return the calls of the groups of a 2 x 2 mesh, whose rows are tp."""
    ranks = torch.arange(4).reshape(2, 2)
    mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp"))
    calls = topoplan.mesh_groups(mesh, dp=("allreduce", "64M"), tp=("allgather", 4096))
    return [f"{call}" for call in calls]


def calls_by_a_joint_plan(path: str) -> list[str]:
    """Several collectives on both dimensions of a 2 x 2 mesh; return what ran them on this rank."""
    rank = dist.get_rank()
    options = topoplan.backend_options(path, choose="plan")
    mesh_groups = []
    for ranks in ([0, 1], [2, 3], [0, 2], [1, 3]):
        group = dist.new_group(ranks, backend="topo", pg_options=options)
        if rank in ranks:
            mesh_groups.append((ranks, group))
    used = []
    for ranks, group in mesh_groups:
        for numel in (1000, 4096):
            x = torch.full((numel,), float(rank))
            dist.all_reduce(x, group=group)
            assert torch.equal(x, torch.full((numel,), float(sum(ranks)))), (ranks, numel)
            gathered = torch.empty(2 * numel)
            dist.all_gather_into_tensor(gathered, torch.full((numel,), float(rank)), group=group)
            wanted = torch.tensor(ranks, dtype=torch.float32).repeat_interleave(numel)
            assert torch.equal(gathered, wanted), (ranks, numel)
        root = ranks[1]
        y = torch.full((2048,), float(rank))
        dist.broadcast(y, root, group=group)
        assert torch.equal(y, torch.full((2048,), float(root)))
        for (name, _, _), communicator in sorted(group.communicators.items(), key=str):
            if communicator is not None:
                members = communicator.plan.collective.members
                used.append(f"{name} {list(members)} of {len(communicator.plan.topology.ranks)}")
    return used


def race_with_others(path: str) -> list[str]:
    """Race a joint plan in which this rank may help, or do nothing; return what its groups use."""
    plan, timeout = JointPlan.load(path), patience.deadline(60)
    transport = Transport(None, timeout, "auto")
    groups = JointGroups(plan, transport, timeout, "race", executor="point-to-point")
    scratch = {
        number: one.dispatcher.make_scratch(plan.groups[number].call.size_bytes // 4, torch.float32)
        for number, one in groups.own.items()
    }
    for _ in range(2):  # anew, and by the cached race
        choice = race_jointly(groups, scratch, find_cache_folder())
    for number, one in groups.own.items():
        members = one.plan.collective.members
        x = torch.full((plan.groups[number].call.size_bytes // 4,), float(dist.get_rank()))
        one.allreduce(x)
        assert (x == sum(members)).all(), (members, x)
    groups.close()
    transport.close()
    return [choice.label, *(f"{x.plan.collective.members}" for x in groups.own.values())]


def labels_after_a_joint_race(path: str, cache: str, meeting_s: float, idle: int) -> list[str]:
    """Make calls on both dimensions of a 2 x 2 mesh by a joint plan that races as a whole.

    The rank `idle` makes its first calls only after the `meeting_s` in which ranks meet for the
    race. Return what each of this rank's groups uses at the planned size.
    """
    choices._MEETING_S = meeting_s
    rank, options = dist.get_rank(), topoplan.backend_options(path, "race", cache=cache)
    events = Events()
    if rank == 0:  # which warns of the end of the meeting
        handler = logging.Handler()
        handler.emit = lambda _: events.tell("nobody waits any more")  # type: ignore[assignment,method-assign]
        choices.log.addHandler(handler)
    labels: list[str] = []
    for ranks in ([0, 1], [2, 3], [0, 2], [1, 3]):
        group = dist.new_group(ranks, backend="topo", pg_options=options)
        if rank not in ranks:
            continue
        if rank == idle and not labels:
            events.wait("nobody waits any more")
        for _ in range(2):
            x = torch.full((1 << 14,), float(rank))
            dist.all_reduce(x, group=group)
            assert torch.equal(x, torch.full((1 << 14,), float(sum(ranks)))), ranks
        (communicator,) = group.communicators.values()
        choice = communicator.choice(1 << 16)
        labels.append("none yet" if choice is None else choice.label)
    return labels
