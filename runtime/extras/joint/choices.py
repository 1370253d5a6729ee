"""Decide once per process what all groups of a joint plan use: its schedules or stock collectives.

The groups' first calls lead here, each in its own thread. The ranks of all groups meet in the
default group's store, race over a private group, and keep its result.

A joint plan is one file of plans for several groups that make their calls at the same time. A race
times several schedules at one message size and keeps the fastest.
"""

import logging
import threading
import time
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ....synth.extras.joint.plan import JointPlan
from ...ranks.groups import PlainGroupMaker, get_attempt_name
from ...ranks.store import find_client, may_outlive_ranks
from ...ranks.transport import Transport
from .groups import JointGroups
from .race import JointChoice, race_jointly

log = logging.getLogger("topoplan")
# Longest wait for the first calls of all ranks: a rank may make its own only after another group's,
# which waits for this race.
_MEETING_S = 10.0
_POLL_S = 0.02  # shorter than people notice
_ALL, _LATE = "all", "late"

_choices: dict[tuple[str, str], Future[JointChoice | None]] = {}
_adds = threading.Lock()


def suits_launch(joint: JointPlan) -> bool:
    """Return whether the ranks of this launch are the members of a joint plan's groups.

    The answer is the same on all ranks. Helpers are in no group that torch makes.
    """
    members = {rank for call in joint.calls for rank in call.collective.members}
    return (
        dist.is_initialized()
        and members == set(range(dist.get_world_size()))
        and len(joint.topology.ranks) == dist.get_world_size()
        and not any(group.helpers for group in joint.groups)
        and not (may_outlive_ranks() and not get_attempt_name())
    )


def find_choice(
    joint: JointPlan,
    timeout: timedelta,
    executor: str,
    cache: Path | None,
    stop: threading.Event,
) -> JointChoice | None:
    """Race the joint plan, and return what all its groups use for CPU tensors. Collective.

    `executor` is as a Communicator's ("auto", "one-sided" or "point-to-point"), `cache` the folder
    for results. The process keeps the result, for the next call with this plan. Return None, the
    same on all ranks, if some rank makes no call of any group for _MEETING_S, or `stop` is set
    meanwhile: then each group decides for itself. Raise ExecutionError if a rank fails in the race.
    `timeout` limits waits in the race.
    """
    key = get_attempt_name(), joint.hash
    with _adds:
        future, is_new = _choices.get(key), False
        if future is None:
            future, is_new = _choices.setdefault(key, Future()), True
    if is_new:
        try:
            future.set_result(_race(joint, "/".join(key), timeout, executor, cache, stop))
        except BaseException as error:
            future.set_exception(error)
    return future.result()


def _race(
    joint: JointPlan,
    name: str,
    timeout: timedelta,
    executor: str,
    cache: Path | None,
    stop: threading.Event,
) -> JointChoice | None:
    client = find_client(dist.distributed_c10d._get_default_store())
    store, ranks = PrefixStore(f"topoplan/joint/{name}", client.store), len(joint.topology.ranks)
    if not _wait_for_all_ranks(store, ranks, stop):
        if dist.get_rank() == 0:
            log.warning(
                "joint plan %s: some ranks made no call of its groups within %.0f s of the others; "
                "each group races by itself",
                joint.hash[:16],
                _MEETING_S,
            )
        return None
    make = PlainGroupMaker(f"topoplan/joint/{name}", range(ranks), "gloo", store)
    transport = Transport(make, timeout, "auto")
    groups = JointGroups(joint, transport, timeout, "race", executor=executor, cache=cache)
    scratch = {
        number: one.dispatcher.make_scratch(
            joint.groups[number].call.size_bytes // torch.float32.itemsize, torch.float32
        )
        for number, one in groups.own.items()
    }
    choice = race_jointly(groups, scratch, cache)
    groups.close()
    transport.close()
    return choice


def _wait_for_all_ranks(store: Store, ranks: int, stop: threading.Event) -> bool:
    """Return whether all ranks have come; the first to decide decides for all."""
    if store.add("arrived", 1) == ranks:
        store.compare_set("answer", "", _ALL)
    deadline = time.monotonic() + _MEETING_S
    while not store.check(["answer"]):
        if stop.wait(_POLL_S) or time.monotonic() > deadline:
            store.compare_set("answer", "", _LATE)
    return store.get("answer").decode() == _ALL
