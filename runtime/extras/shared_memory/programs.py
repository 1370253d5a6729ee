"""Compile schedules into the programs of ranks that share memory.

A program is one rank's instructions for a schedule. In a one-sided one the rank puts values where
others read them, signals, waits and adds (one_sided/instructions.py), without messages.
"""

from __future__ import annotations

from functools import cached_property

import torch

from ....synth.ir.schedule import number_members
from ...codec import Encoding
from ...compiled import Compiled
from ...program.contract import PlayedProgram, Player
from ..one_sided.lowering import lower_one_sided
from .memory import HALF_BYTES, HostMemory, SharedMemory, open_memory
from .parts import Outside
from .player import PlayerInSharedMemory
from .player_within_hosts import EncodedParts, PlayerWithinHosts


class CompiledInMemory(Compiled):
    """One rank's one-sided program of a schedule, for memory that all ranks share."""

    crosses_links = False

    def lower(self, numel: int) -> tuple[PlayedProgram, int]:
        """Return this rank's program for `numel` elements, and how many elements it sends."""
        # The memory is numbered like the group.
        program = self._one_sided = lower_one_sided(
            number_members(self.schedule),
            self.transport.rank,
            numel,
            window_numel=HALF_BYTES // self.dtype.itemsize,
            averages=self.divides,
        )
        return program, sum(slot.length for slot in program.puts)

    @property
    def staging_numel(self) -> int:
        """The elements of memory for received values that a call needs: none."""
        return 0

    def make_player(
        self, work: torch.Tensor, staging: torch.Tensor, encoding: Encoding | None
    ) -> Player:
        """Return a player of the program on the work buffer `work`; the rest is not needed."""
        memory = open_memory(self.transport)
        assert isinstance(memory, SharedMemory)
        op = self.op if self.schedule.collective.reduces else None
        labels = self.transport.control.labels
        return PlayerInSharedMemory(memory, self._one_sided, work, op, self.call, labels)


class CompiledWithinHosts(Compiled):
    """One rank's messages of a schedule; those within its host go through shared memory."""

    @cached_property
    def encoded(self) -> EncodedParts:
        """The program divided into messages to other hosts and parts for the C++ library."""
        memory, labels = open_memory(self.transport), self.transport.control.labels
        assert isinstance(memory, HostMemory)
        return EncodedParts(self.messages, memory, labels, self.ranks, self.dtype.itemsize)

    def make_player(
        self, work: torch.Tensor, staging: torch.Tensor, encoding: Encoding | None
    ) -> Player:
        """Return a player of the program on the buffers `work`, and `staging` for received values.

        `encoding` is not used, as nothing is compressed.
        """
        op = self.op if self.schedule.collective.reduces else None
        buffers = {"work": work, "staging": staging}
        messages = {}
        for part in self.encoded.parts:
            if isinstance(part, Outside) and part.begins:
                post, span = part.post, part.post.span
                view = buffers[span.buffer][span.start : span.end]
                peer = self.transport.control.number_of(post.peer)
                messages[part.number] = [view], peer, self.tag(post)
        return PlayerWithinHosts(
            self.encoded, self.transport.links.backend, messages, buffers, op, self.call
        )
