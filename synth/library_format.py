"""Files that tune other libraries, such as NCCL and MLX, to a topology: the contract of a format.

Extras, the optional features that extras.py at the root lists, add formats to its group `files`.
Stock is what the library does without such a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..topo.routes import Router
    from .bounds.single_path import Bounds
    from .ir.collective import Collective
    from .numeric.effort import Effort


@dataclass(frozen=True)
class Export:
    """The `text` of a file in one of the formats, with `figures` for JSON and `lines` for people.

    `format` is the format's name. `reason` is why the text should not be used, and is not written:
    stock is as good, or the library does not start on this machine; None if it should be used.
    `bounds` are the collective's, to compare its rates with; None if the format has no rates.
    `environment` has the environment variables that the file needs. `beside` is the text of a
    second file, None if there is none, and `beside_what` says what that has.
    """

    format: str
    text: str
    figures: dict[str, Any]
    lines: tuple[str, ...]
    bounds: Bounds | None = None
    reason: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    beside: str | None = None
    beside_what: str = "rings for the other collectives"

    @property
    def key(self) -> str:
        """The key under which topo-synth's JSON has the figures."""
        return self.format.replace("-", "_")


@dataclass(frozen=True)
class LibraryRequest:
    """A file that is wanted: the collective, the routes of the topology, and the effort to spend.

    `effort` is the allowance of work and time for searches; `progress` is called with lines of
    text. `version` is that of NCCL as the user gave it, such as "2.21"; None for the newest. The
    file is for buffers of `size_bytes` in jobs of `hosts` hosts like the topology. With `guard` a
    file that should not be used has a `reason`. `measured` are the arguments of --measured: what
    NCCL was forced to use, and the file with its times. `beside_path` is where a second file will
    be, None if there will be none.
    """

    collective: Collective
    router: Router
    effort: Effort
    progress: Callable[[str], None] | None
    version: str | None
    size_bytes: int
    hosts: int = 1
    guard: bool = True
    measured: Sequence[str] = ()
    beside_path: str | None = None


@dataclass(frozen=True)
class LibraryFormat:
    """A format of an extra: `write` is called with what is wanted, and returns the file.

    It raises InfeasibleError or InputError if the format cannot express it. `beside` is how the
    name of a second file goes on after that of the first one, "" if there is none. `options` are
    those of topo-synth's options for such files that it takes: --nccl-version, --no-guard, --hosts,
    --measured. `suffix` is that of files which have this format without being asked for.
    """

    write: Callable[[LibraryRequest], Export]
    beside: str = ""
    options: tuple[str, ...] = ()
    suffix: str = ""
