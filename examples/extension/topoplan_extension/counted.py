"""The layer counted: how many bytes the calls of a process were for, by their collective."""

from collections import Counter

from topoplan.runtime.compiled import Buffers
from topoplan.runtime.dispatcher import CallPath
from topoplan.runtime.layers import PlainLayer

BYTES: Counter[str] = Counter()


class Counted(PlainLayer):
    """Counts calls that ended well."""

    def run(self, path: CallPath, buffers: Buffers, number: int | None = None) -> None:
        """Carry out a call, then count it."""
        path.run(buffers, number)
        BYTES[path.base.plan.collective.name] += buffers.target.nbytes
