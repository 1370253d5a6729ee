"""Hold one rank's part in a joint plan: communicators of its groups, its service as a helper.

A joint plan is one file of plans for several groups that make their calls at the same time. Helpers
are ranks outside a group that forward bytes for it.
"""

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
    """This rank's communicators of the groups in `joint`, over a transport of all its GPUs.

    Making it is collective over the transport's ranks. `own` maps the numbers of this rank's groups
    to their communicators; for the other groups it forwards bytes as a helper, if their plan uses
    it, until `close`. The remaining arguments are those of Communicator.
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
        """Run `calls`, functions by group number, all at once in threads, and wait for all."""
        list(self._pool.map(lambda call: call(), calls.values()))

    def close(self) -> None:
        """Close the communicators, and wait until this rank's service as a helper ends."""
        self._pool.shutdown()
        for communicator in self.own.values():
            communicator.close()
        for thread in self._helping:
            thread.join()
