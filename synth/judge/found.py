"""What a file says of a machine's collectives, before any of it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Every rank once.
Order = tuple[int, ...]
# The parent of each rank in a tree; -1 for the root.
Parents = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Where a rank runs, as far as a file says it: its host, the GPU's number there (NVML's, else
    CUDA's), its PCI address.

    `bus` has four forms: "0000:1b:00.0", "0000:1b:00", "1b" (the bus alone) and None.
    """

    host: str | None = None
    dev: int | None = None
    bus: str | None = None
    physical: bool = False
    """Whether `dev` is NVML's number, which CUDA_VISIBLE_DEVICES does not change."""


@dataclass(frozen=True)
class Measurement:
    """One measured call: its collective, the bytes of the buffer, and what was reached, in GB/s."""

    collective: str
    ranks: int
    size_bytes: int
    algbw_GBps: float
    busbw_GBps: float
    time_us: float
    how: str = ""
    """What was measured: "out-of-place", "in-place", "plan", "stock"; empty where there is one
    only.
    """
    wrong: bool = False
    """Whether the result had wrong elements."""


@dataclass(frozen=True)
class Pick:
    """What the tuner took for a call: algorithm and protocol in capitals ("RING", "SIMPLE")."""

    collective: str | None
    size_bytes: int
    algorithm: str
    protocol: str


@dataclass(frozen=True)
class Pattern:
    """What NCCL's search found: a pattern, channels, the rate of each inside nodes and between them
    in GB/s, types of hops.
    """

    number: int
    channels: int
    intra_GBps: float
    inter_GBps: float
    type_intra: str
    type_inter: str


@dataclass(frozen=True)
class Finding:
    """Something worth saying of a file: what (a name for programs), a sentence, and what to do
    about it, where known.
    """

    name: str
    message: str
    advice: str = ""
    line: int | None = None


@dataclass(frozen=True)
class Communicator:
    """What is known of a communicator: its ranks and their places, and the channels that the
    library found for it.

    `rings` and `trees` hold whole channels only; `promised` is how many there are said to be.
    """

    ranks: int
    nodes: int | None = None
    places: Mapping[int, Place] = field(default_factory=dict, hash=False)
    rings: tuple[Order, ...] = ()
    trees: tuple[Parents, ...] = ()
    promised: int | None = None
    patterns: tuple[Pattern, ...] = ()
    transports: Mapping[str, int] = field(default_factory=dict, hash=False)
    """How many connections go by each transport: P2P, SHM, NET/IB ..."""
    alike: int = 1
    """How many communicators of the file have the same ranks and channels."""
    uses_nvls: bool = False


@dataclass(frozen=True)
class Reading:
    """What a file says. `kind` names its format in messages, `notes` say what was not read."""

    where: str
    kind: str
    library: str | None = None
    measurements: tuple[Measurement, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    picks: tuple[Pick, ...] = ()
    places: Mapping[int, Place] = field(default_factory=dict, hash=False)
    """Places of the measured ranks."""
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    topology_files: tuple[str, ...] = ()
    """Files of the machine's topology that the text names."""
    is_graph_file: bool = False
