"""What the text around a matrix or a table says of its machine: an extra reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ...extras import STATEMENTS, Names
from ..facts import Fact
from ..hardware import PcieLink
from ..notes import Source

# A PCIe link, and where it is stated.
StatedLink: TypeAlias = tuple[PcieLink, Source]


class Around:
    """What a text says beside its matrix: nothing, unless an extra's subclass reads it.

    `facts` are about the host and its GPUs. `unread` describes the first line that names a
    generation of PCIe without a GPU's link, "" if there is none.
    """

    facts: tuple[Fact, ...] = ()
    unread = ""

    def __init__(self, text: str, elsewhere: Around | None = None) -> None:
        """Read a text; what it does not say itself is as the text `elsewhere` has it."""

    def list_settings(self, nics: Sequence[str], *, has_p2p: bool) -> list[str]:
        """Return notes of what limits NCCL on the machine; `nics` are the names of its NICs.

        `has_p2p` says whether the text has matrices of what GPUs may do to each other.
        """
        return []

    def build_p2p_facts(self, gpus: tuple[str, ...]) -> Iterable[Fact]:
        """Return facts of P2P between `gpus`, the numbers of all."""
        return ()

    def find_gpu_links(
        self, slots: Mapping[int, PcieLink | None], notes: list[str], *, is_sure: bool
    ) -> dict[int, StatedLink]:
        """Return the PCIe links of GPUs, by their numbers, and note lines that disagree.

        `slots` has that of each GPU's board, None where the board is not known; `is_sure` is False
        for boards that are only assumed.
        """
        return {}

    def find_nic_link(self, nics: int, notes: list[str]) -> StatedLink | None:
        """Return the PCIe link that each of a number of NICs has, None if none is stated."""
        return None


def read_around(text: str, elsewhere: Around | None = None) -> Around:
    """Return what a text says around its matrix."""
    kind: type[Around] = Names(STATEMENTS).find_only(Around)
    return kind(text, elsewhere)
