"""What the text around a matrix or a table says of its machine: an extra reads it.

The matrix is that of nvidia-smi topo -m, the tables are those of AMD's tools; people paste them
with other output and sentences. An extra is an optional part of topoplan: it adds a subclass of
Around to the group `statements` (extras.py at the root).
"""

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

    GPUs are named by their numbers in the matrix (3 for GPU3). `facts` are about the host and its
    GPUs. `unread` describes the first line that names a generation of PCIe without a GPU's link, ""
    if there is none.
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
        """Return facts of P2P between `gpus`, the numbers of all GPUs of the matrix as text."""
        return ()

    def find_gpu_links(
        self, slots: Mapping[int, PcieLink | None], notes: list[str], *, is_sure: bool
    ) -> dict[int, StatedLink]:
        """Return the PCIe links that the text states for GPUs, by their numbers, with sources.

        `slots` has that of each GPU's board, None where the board is not known; `is_sure` is False
        for boards that are only assumed. Doubts about them are added to `notes`.
        """
        return {}

    def find_nic_link(self, nics: int, notes: list[str]) -> StatedLink | None:
        """Return the PCIe link that the text states for each of `nics` NICs, None without one.

        Doubts about them are added to `notes`.
        """
        return None


def read_around(text: str, elsewhere: Around | None = None) -> Around:
    """Return what a text says around its matrix, as the installed extra reads it.

    What it does not say itself is as the text `elsewhere` has it.
    """
    kind: type[Around] = Names(STATEMENTS).find_only(Around)
    return kind(text, elsewhere)
