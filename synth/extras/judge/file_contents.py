"""The contents of a file about a machine's collectives, before any of it is judged."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ....topo.errors import InputError
from ....topo.graph import Topology

# A ring: every rank once.
Order = tuple[int, ...]
# Words of logs and tables, beside which XML is no more than the machine.
HAS_RESULTS = re.compile(r"\bNCCL (?:INFO|WARN)\b|\balgbw\b|\bbusbw\b|\bOSU [MN]")
# Names of what a table may be if its columns do not tell: nothing is compared with a bound then.
ALLGATHER_OR_ALLTOALL = "allgather or alltoall"
GATHER_OR_SCATTER = "gather or scatter"
# A tree: the parent of each rank; -1 for the root.
Parents = tuple[int, ...]


@dataclass(frozen=True)
class Location:
    """The location of a rank: its host, the number of its GPU there, and its PCI address.

    Each is None if the file does not state it. `bus` has three forms: "0000:1b:00.0", "0000:1b:00"
    and "1b" (the bus alone). `model` is the GPU's name ("NVIDIA A40").
    """

    host: str | None = None
    dev: int | None = None
    bus: str | None = None
    # True if `dev` is NVML's number, which CUDA_VISIBLE_DEVICES does not change; else it is CUDA's.
    physical: bool = False
    model: str | None = None


@dataclass(frozen=True)
class Measurement:
    """One measured call: its collective, the bytes of the buffer, and the rates in GB/s.

    The collective may be "A or B" (GATHER_OR_SCATTER). `run` is the number of the run, from 1, if
    several runs of the file measured the same, else 0. `time_us` is the duration of the call.
    `ranks` is 0 if the file does not state it. `how` is the variant that was measured
    ("out-of-place", "in-place", "plan", "stock"), empty if there is only one; a type of elements
    follows ("in-place half") if there are several. `wrong` is True if the result had wrong
    elements. `locations` are those of the ranks of this run, empty if the text does not state them.
    """

    collective: str
    ranks: int
    size_bytes: int
    algbw_GBps: float
    busbw_GBps: float
    time_us: float
    how: str = ""
    wrong: bool = False
    run: int = 0
    locations: Mapping[int, Location] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class BenchmarkResults:
    """What a benchmark printed: measurements, locations of ranks, and notes of what is left out."""

    measurements: tuple[Measurement, ...]
    locations: Mapping[int, Location] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pick:
    """The tuner's choice for a call: algorithm and protocol in capitals ("RING", "SIMPLE").

    The collective is None if the log does not name it.
    """

    collective: str | None
    size_bytes: int
    algorithm: str
    protocol: str


@dataclass(frozen=True)
class SearchResult:
    """The result of NCCL's search for one pattern of channels: rings, or a kind of trees.

    `number` is NCCL's number of the pattern (4: rings). Rates are those of one channel in GB/s,
    inside nodes and between them; types are those of the worst hops, such as NVL or PIX.
    """

    number: int
    channels: int
    intra_GBps: float
    inter_GBps: float
    type_intra: str
    type_inter: str


@dataclass(frozen=True)
class FileFinding:
    """A remark on a file: its name for programs, a sentence, and the remedy, empty if unknown.

    `line` is the number of the line that shows it, from 1; None if no single one does.
    """

    name: str
    message: str
    advice: str = ""
    line: int | None = None


@dataclass(frozen=True)
class ObservedCommunicator:
    """A communicator as a file describes it: its ranks, their locations and its channels.

    `locations` are by rank. `rings` and `trees` hold complete channels only; `promised` is the
    number of channels that the file announces. `patterns` are NCCL's search results. `transports`
    counts connections by transport (P2P, SHM, NET/IB ...). `alike` is how many communicators of the
    file have the same ranks and channels. `nodes` is the number of its hosts, None if unknown;
    `uses_nvls` says whether NVSwitches add (NVLS). `has_more` is True if the file does not state
    the number of ranks, so that there may be more than those it names.
    """

    ranks: int
    nodes: int | None = None
    locations: Mapping[int, Location] = field(default_factory=dict, hash=False)
    rings: tuple[Order, ...] = ()
    trees: tuple[Parents, ...] = ()
    promised: int | None = None
    patterns: tuple[SearchResult, ...] = ()
    transports: Mapping[str, int] = field(default_factory=dict, hash=False)
    alike: int = 1
    uses_nvls: bool = False
    has_more: bool = False


class NothingToJudgeError(InputError):
    """A text has nothing to compare with a bound; `text` is the text, shortened if it is long."""

    def __init__(self, error: InputError, text: str) -> None:
        super().__init__(str(error), parameter=error.parameter)
        self.text = text


@dataclass(frozen=True)
class FileContents:
    """The contents of a file. `kind` names its format in messages; `notes` list skipped parts.

    `where` is the file's name, `library` the name and version of the collective library, None if
    not stated. `picks` are what its tuner chose, `findings` remarks with remedies. `text` is what
    was read, shortened if it is long. `locations` are those of the measured ranks.

    `topology_files` are the names in the text of files with the machine's topology. `machine` is
    the topology that the text itself contains, None if it contains none, and `machine_source` says
    in what form. `group` are the GPUs that took part, by their numbers on the machine, empty if the
    file does not list them, and `helpers` the other GPUs that forwarded data for them.
    """

    where: str
    kind: str
    library: str | None = None
    measurements: tuple[Measurement, ...] = ()
    communicators: tuple[ObservedCommunicator, ...] = ()
    picks: tuple[Pick, ...] = ()
    locations: Mapping[int, Location] = field(default_factory=dict, hash=False)
    findings: tuple[FileFinding, ...] = ()
    notes: tuple[str, ...] = ()
    topology_files: tuple[str, ...] = ()
    is_graph_file: bool = False
    machine: Topology | None = None
    machine_source: str = ""
    group: tuple[int, ...] = ()
    helpers: tuple[int, ...] = ()
    text: str = field(default="", repr=False, compare=False)


def chain_parents(order: Sequence[int]) -> Parents:
    """Return a chain, which begins at its root, as a tree."""
    above = dict(zip(order[1:], order, strict=False))
    return tuple(above.get(rank, -1) for rank in range(len(order)))
