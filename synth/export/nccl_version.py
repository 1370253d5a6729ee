"""Versions of NCCL, and the limits of each on graph files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...topo.errors import InputError

_FORM = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.\d{1,3})?(?:-\d{1,3})?")


@dataclass(frozen=True, order=True)
class NcclVersion:
    """A version of NCCL, such as 2.27, with the limits of its sources (device.h, topo.h, xml.h)."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def max_channels(self) -> int:
        """The most channels of a graph: NCCL doubles them without a check of its arrays' size."""
        return 32 if self >= NcclVersion(2, 25) else 16

    @property
    def max_elements(self) -> int:
        """The most XML elements of a graph file."""
        if self >= NcclVersion(2, 30):
            return 65536
        return 4096 if self >= NcclVersion(2, 21) else 1024

    @property
    def max_children(self) -> int:
        """The most XML elements below one element."""
        if self >= NcclVersion(2, 30):
            return 640
        return 128 if self >= NcclVersion(2, 21) else 32

    @property
    def knows_p2c(self) -> bool:
        """Whether the type P2C is known; older versions read it as LOC."""
        return self >= NcclVersion(2, 28)


OLDEST = NcclVersion(2, 6)
# The last version whose sources were read; later ones are treated like it.
NEWEST = NcclVersion(2, 30)


def parse_nccl_version(text: str) -> NcclVersion:
    """Return the version of a text such as 2.27 or 2.27.7-1.

    Raise InputError if the text is not a version, or the version is too old for graph files.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"{text[:40]}: expected a version of NCCL such as 2.27 or 2.27.7",
            parameter="nccl_version",
        )
    version = NcclVersion(int(match.group(1)), int(match.group(2)))
    if version < OLDEST:
        raise InputError(
            f"{text}: graph files of this form are read by NCCL {OLDEST} and later",
            parameter="nccl_version",
        )
    return version
