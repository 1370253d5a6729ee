"""The compiled programs of ranks that share memory (runtime/compiled.py)."""

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
    """The one-sided program of one rank, for memory that the transport's ranks share."""

    crosses_links = False

    def lower(self, numel: int) -> tuple[PlayedProgram, int]:
        """Return this rank's program, and the elements (bytes with a codec) that it sends."""
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
        """The elements of staging memory that a call needs."""
        return 0

    def make_player(
        self, work: torch.Tensor, staging: torch.Tensor, encoding: Encoding | None
    ) -> Player:
        """Return what plays the program on a work buffer, with scratch memory."""
        memory = open_memory(self.transport)
        assert isinstance(memory, SharedMemory)
        op = self.op if self.schedule.collective.reduces else None
        labels = self.transport.control.labels
        return PlayerInSharedMemory(memory, self._one_sided, work, op, self.call, labels)


class CompiledWithinHosts(Compiled):
    """The messages of one rank, those within its host through the memory of the host."""

    @cached_property
    def encoded(self) -> EncodedParts:
        """The program's parts, as the library in C++ plays those within the host."""
        memory, labels = open_memory(self.transport), self.transport.control.labels
        assert isinstance(memory, HostMemory)
        return EncodedParts(self.messages, memory, labels, self.ranks, self.dtype.itemsize)

    def make_player(
        self, work: torch.Tensor, staging: torch.Tensor, encoding: Encoding | None
    ) -> Player:
        """Return what plays the program on a work buffer, with scratch memory."""
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
