"""Count what runs at a time through each limited device, without knowing how a schedule was made.

It shares no code with what makes the schedules (turns.py): neither the ports of a path nor the
order of messages. A transfer is here what one rank sends another in one step, however many chunks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ....topo.errors import VerificationError
from ....topo.graph import Topology
from ...ir.schedule import Schedule


def check_concurrency(
    schedule: Schedule, topology: Topology, most: Mapping[str, int], label: str
) -> None:
    """Raise VerificationError if more transfers than allowed are at a device in some step.

    `most` is how many may be, by the devices' ids: at a GPU out of it and into it, each, at other
    devices through them. `label` says in errors what allows so many. A schedule in several segments
    is refused, since its steps overlap.
    """
    if schedule.segments != 1:
        raise VerificationError(
            f"the {schedule.label} schedule is cut into {schedule.segments} segments, whose steps "
            f"overlap; with {label} it has to be in one"
        )
    gpus = set(topology.ranks)
    at: dict[tuple[int, str, str], set[tuple[int, int]]] = defaultdict(set)
    for transfer in schedule.transfers:
        pair = transfer.src, transfer.dst
        at[transfer.step, topology.ranks[transfer.src], "out of"].add(pair)
        at[transfer.step, topology.ranks[transfer.dst], "into"].add(pair)
        for device in transfer.route:
            if device not in gpus:
                at[transfer.step, device, "through"].add(pair)
    for (step, device, how), pairs in sorted(at.items()):
        if device in most and len(pairs) > most[device]:
            raise VerificationError(
                f"the {schedule.label} schedule sends {len(pairs)} transfers at once {how} "
                f"{device!r} in step {step}; the plan promises {label}"
            )
