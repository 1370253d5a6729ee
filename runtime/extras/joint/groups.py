"""The groups of a joint plan on one rank: its communicators, and its service as a helper."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from ....synth.extras.joint.plan import JointPlan
from ...communicator import Communicator
from ...policy import ChooseMode
from ...ranks.transport import Transport


class JointGroups:
    """The groups of `joint` over a transport that has a rank for each GPU of its topology.

    Making it is collective over the transport's ranks. `own` has the communicators of the groups
    that this rank is a member of, by the number of the group; for the others it serves as a helper,
    if it is one, until `close`. The other arguments are those of Communicator.
    """

    def __init__(
        self,
        joint: JointPlan,
        transport: Transport,
        timeout: timedelta,
        choose: ChooseMode,
        *,
        executor: str | None = None,
        cache: str | Path | None = None,
    ) -> None:
        self.joint, self.transport = joint, transport
        communicators = [
            Communicator(group.plan, transport, timeout, choose, executor=executor, cache=cache)
            for group in joint.groups
        ]
        self.own: dict[int, Communicator] = {}
        self._helping: list[threading.Thread] = []
        for number, (group, one) in enumerate(zip(joint.groups, communicators, strict=True)):
            if transport.rank in group.call.collective.members:
                self.own[number] = one
            elif transport.rank in group.helpers:
                self._helping.append(threading.Thread(target=one.serve, daemon=True))
        for thread in self._helping:
            thread.start()
        self._pool = ThreadPoolExecutor(max(1, len(self.own)))

    def run(self, calls: Mapping[int, Callable[[], object]]) -> None:
        """Make a call of each of this rank's groups, by the group's number, all at once."""
        list(self._pool.map(lambda call: call(), calls.values()))

    def close(self) -> None:
        """End the communicators; members let their helpers go."""
        self._pool.shutdown()
        for communicator in self.own.values():
            communicator.close()
        for thread in self._helping:
            thread.join()
