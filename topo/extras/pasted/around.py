"""Read what people and other tools write around a matrix: PCIe links, MIG, P2P, the host.

The matrix is the one of `nvidia-smi topo -m`, or of AMD's tools; their readers use this through
topo/formats/around.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...facts import Fact
from ...formats.around import Around, StatedLink
from ...hardware import PcieLink
from .cuda_samples import build_sample_facts, read_samples
from .mig import find_mig_facts
from .said_host import find_down_nics, find_host_facts, find_said_no_p2p, find_settings
from .said_pcie import find_said_pcie


class TextAround(Around):
    """What a text says beside its matrix.

    `facts` are about the MIG modes of GPUs and the host. `unread` describes the first line that
    names a generation of PCIe without a GPU's link, "" if there is none.
    """

    def __init__(self, text: str, elsewhere: Around | None = None) -> None:
        """Read a text; what it does not say of PCIe is as the text `elsewhere` has it."""
        self._text = text
        self._samples = read_samples(text)
        self._pcie = find_said_pcie(text)
        self.unread = self._pcie.unread
        if not self._pcie and isinstance(elsewhere, TextAround):
            self._pcie = replace(elsewhere._pcie, unread=self.unread)
        self.facts = (*find_mig_facts(text), *find_host_facts(text))

    def list_settings(self, nics: Sequence[str], *, has_p2p: bool) -> list[str]:
        """Return notes of P2P that is switched off or said to be missing, and of NICs without link.

        Where a matrix, or CUDA's samples, say what GPUs may do, no sentence about it counts.
        """
        is_unknown = not self._samples and not has_p2p
        return [
            *find_settings(self._text),
            *find_down_nics(self._text, nics),
            *(find_said_no_p2p(self._text) if is_unknown else ()),
        ]

    def build_p2p_facts(self, gpus: tuple[str, ...]) -> Iterable[Fact]:
        """Return facts of P2P between `gpus`, the numbers of all, by CUDA's samples."""
        return build_sample_facts(self._samples, gpus)

    def find_gpu_links(
        self, slots: Mapping[int, PcieLink | None], notes: list[str], *, is_sure: bool
    ) -> dict[int, StatedLink]:
        """Return the PCIe links of GPUs, by their numbers; add what is not followed to `notes`.

        `slots` has, by the numbers of all GPUs, the link that the GPU's board can have, None if the
        board is unknown; `is_sure` is False for boards that are only assumed. GPUs of which nothing
        is said are left out.
        """
        said = self._pcie.place_addresses([*slots])
        notes += said.notes
        found = {
            gpu: said.find(gpu, slot, is_sure and slot is not None) for gpu, slot in slots.items()
        }
        return {gpu: link for gpu, link in found.items() if link is not None}

    def find_nic_link(self, nics: int, notes: list[str]) -> StatedLink | None:
        """Return the PCIe link that each of a number of NICs has, None if none is stated.

        Add to `notes` if the text states links of which the NICs are not known.
        """
        return self._pcie.find_nics(nics, notes)
