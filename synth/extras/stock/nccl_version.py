"""Parse versions of NCCL, and tell what each version's sources limit or support."""

import re
from dataclasses import dataclass, field

from ....topo.errors import InputError
from .constants import FILE_CHANNELS, FILE_CHILDREN, FILE_ELEMENTS, P2C_SINCE

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:-\d{1,3})?")


@dataclass(frozen=True, order=True)
class NcclVersion:
    """A version of NCCL, such as 2.27, with the limits of its sources (`constants`).

    Without a `patch` the last release of that minor version is meant; it is not compared.
    """

    major: int
    minor: int
    patch: int | None = field(default=None, compare=False, kw_only=True)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def max_channels(self) -> int:
        """The most channels of a graph in a file, such that twice as many fit NCCL's arrays."""
        return self._look_up(FILE_CHANNELS)

    @property
    def max_elements(self) -> int:
        """The most XML elements of a graph file."""
        return self._look_up(FILE_ELEMENTS)

    @property
    def max_children(self) -> int:
        """The most XML elements below one element."""
        return self._look_up(FILE_CHILDREN)

    def _look_up(self, table: tuple[tuple[tuple[int, int], int], ...]) -> int:
        return next(value for since, value in table if (self.major, self.minor) >= since)

    @property
    def is_subnet_aware(self) -> bool:
        """Whether NCCL_IB_SUBNET_AWARE_ROUTING exists: since 2.30.7, not in 2.30.3 and 2.30.4."""
        if (self.major, self.minor) == (2, 30):
            return self.patch is None or self.patch >= 7
        return self > NcclVersion(2, 30)

    @property
    def knows_p2c(self) -> bool:
        """Whether NCCL knows the path type P2C (NVLink-C2C to a CPU); else it reads it as LOC."""
        return (self.major, self.minor) >= P2C_SINCE


OLDEST = NcclVersion(2, 6)
# The last version whose sources were read; later ones are treated like it.
NEWEST = NcclVersion(2, 30)


def parse_nccl_version(text: str) -> NcclVersion:
    """Return the version of a text such as 2.27 or 2.27.7-1.

    Raise InputError if the text is not a version, or the version is too old for graph files.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"{text[:40]}: expected a version of NCCL such as 2.27 or 2.27.7",
            parameter="nccl_version",
        )
    patch = match.group(3)
    version = NcclVersion(
        int(match.group(1)),
        int(match.group(2)),
        patch=None if patch is None else int(patch),
    )
    if version < OLDEST:
        raise InputError(
            f"{text}: graph files of this form are read by NCCL {OLDEST} and later",
            parameter="nccl_version",
        )
    return version
