"""The runner of plans with limits: messages that wait for their turn.

A limit is the number of transfers that may run at a time through a port: out of or into a GPU, or
through another device. Handovers are the waits by which ranks keep to them (pacing.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from ....synth.extras.concurrency.handovers import find_handovers
from ....synth.extras.concurrency.limits import Port
from ....synth.extras.concurrency.section import NAME, Concurrent
from ....synth.ir.schedule import Schedule
from ....topo.graph import Topology
from ...candidates import Candidate
from ...compiled import Buffers, Compiled
from ...program.contract import PlayedProgram
from ...ranks.links import Links
from ...ranks.transport import Transport
from ...runners.contract import Opening, Runner, RunnerKind
from ...runners.programs import Messages
from .pacing import pace


class Turns(Messages):
    """Sends the messages of schedules that keep to the limits of ports, each in its turn.

    `limited` maps each limited port of the `topology` to its limit.
    """

    name = "turns"

    def __init__(
        self, transport: Transport, topology: Topology, limited: Mapping[Port, int]
    ) -> None:
        super().__init__(transport, topology)
        self.machine, self.limited = topology, limited

    @property
    def why_alone(self) -> str:
        """Why schedules may be carried out in no other way."""
        return "the plan limits concurrent transfers, which messages keep to alone"

    def takes(self, schedule: Schedule) -> bool:
        """Return whether a schedule's messages can wait for their turns.

        They can only if the buffer is sent in one segment: with several (pipelined) segments the
        steps overlap.
        """
        return schedule.segments == 1

    def make_program(self, candidate: Candidate, buffers: Buffers) -> Compiled:
        """Return the program of a candidate for buffers of one kind."""
        return _Paced(candidate, buffers, self)


class _Paced(Compiled):
    """A program whose sends wait for their turn."""

    def __init__(self, candidate: Candidate, buffers: Buffers, runner: Turns) -> None:
        self._runner = runner
        super().__init__(candidate, buffers, runner.transport, None)

    def lower(self, numel: int) -> tuple[PlayedProgram, int]:
        """Return this rank's program, and the elements that it sends, tokens not counted."""
        _, sent = super().lower(numel)
        handovers = find_handovers(self.schedule, self._runner.machine, self._runner.limited)
        self.messages = pace(self.messages, handovers)
        self.check_numbers(self.messages)
        return self.messages, sent


class _Kind:
    """See RunnerKind."""

    def prepare(self, transport: Transport) -> str | None:
        """Return why a transport's ranks cannot have the runner, None if they can."""
        if type(transport.links).prepare is not Links.prepare:
            return f"{transport.links.name} carries messages in another order than a program's"
        return None

    def open(self, opening: Opening) -> Runner | str:
        """Return the runner, or why there is none."""
        why_not = self.prepare(opening.transport)
        if why_not is not None:
            return why_not
        section = opening.plan.find_extension(NAME)
        if not isinstance(section, Concurrent):
            return "the plan has no limits on concurrent transfers"
        topology = opening.plan.topology
        return Turns(opening.transport, topology, section.limits.find_ports(topology))


TURNS: RunnerKind = _Kind()
