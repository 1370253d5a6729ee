"""Find the topology that an argument names: this machine (`local`), a file, or a preset.

A box is one host's GPUs with the switches and links inside it: files that only give the hosts'
places in a network need one. A skeleton is NCCL's XML of a machine without its GPUs.
"""

from os import PathLike, fspath
from pathlib import Path

from ...extras import SKELETONS, Names
from ..derived.stripes import merge_switches
from ..errors import InputError
from ..files import read_file, read_start
from ..formats.detect import find_place_formats, read_topology_text
from ..formats.format import Skeletons
from ..graph import Topology
from ..hardware_rule import HARDWARE
from ..presets import PRESETS, preset
from ..routes import Router

LOCAL = "local"
MAX_FILE_BYTES = 16 * 2**20  # bytes: MAX_LINKS links take less


def load(path_or_name: str | PathLike[str], box: str | PathLike[str] | None = None) -> Topology:
    """Return the topology of a file, a folder, a preset or this machine.

    A file is read by its content: topoplan's JSON, NCCL's or RCCL's XML, hwloc's XML, the text of
    `nvidia-smi topo -m`, `nvidia-smi nvlink -R`, `rocm-smi --showtopo` or `amd-smi topology`, a
    log of NCCL with its graph; a folder or tar archive is a copy of another machine's `/sys` and
    `/proc`. A name is a preset (`dgx1`, `dgx-a100:2`, `mesh:4x4`, `ring:8@25`), or `local`,
    this machine. Plans are read by `Plan.load`.

    `box`, a preset or a file, describes each host if the file only gives the hosts' places in the
    network: Slurm's topology.conf or topology.yaml, topograph's JSON, Kubernetes nodes, a list of
    hosts.

    Raise InputError if `path_or_name` is none of these, if the file or folder cannot be read, or if
    `box` is missing or not needed.
    """
    if not isinstance(path_or_name, (str, PathLike)):
        raise InputError(f"a topology is {path_or_name!r:.60}; expected a path or a name")
    if box is not None and not isinstance(box, (str, PathLike)):
        raise InputError(f"a box is {box!r:.60}; expected a path or a name")
    return resolve(fspath(path_or_name), None if box is None else fspath(box))


def load_for_planning(machine: str | PathLike[str] | Topology) -> tuple[Topology, Router]:
    """Return the topology that planners use for a path, a name or a topology, and its router.

    All planning enters here. Equal parallel switches are merged, since traffic spreads over them: a
    route through one of them would have a fraction of the hardware's bandwidth. Raise InputError if
    `machine` names no topology.
    """
    topology = merge_switches(machine if isinstance(machine, Topology) else load(machine))
    return topology, HARDWARE.on(topology)


def probe(root: str | PathLike[str] = "/") -> Topology:
    """Return the machine that this runs on: its GPUs, CPUs, NICs, switches and links.

    Anything that cannot be determined is named in `extra["notes"]`; everything else is there.
    `root` is a folder or tar archive that contains a copy of another machine's `/sys` and `/proc`;
    raise InputError if it has neither.
    """
    from ..probe.join import probe_local  # most arguments do not need the probes

    return probe_local(Path(root))


def resolve(argument: str, box: str | None = None) -> Topology:
    """Return the topology that a command's argument names, as `load` does for Python callers.

    `local` is the machine this runs on; an existing file is read by its content (an NCCL XML
    skeleton is filled in from this machine); a folder or a tar archive is a copy of another
    machine's `/sys` and `/proc`; any other argument is a preset. `box` names a description of each
    host, for files that only give the hosts' places. Raise InputError if the argument names no
    topology, or if `box` is missing or not needed (a skeleton ignores it).
    """
    path, is_local = Path(argument), argument == LOCAL
    is_preset = argument.partition("@")[0].partition(":")[0] in PRESETS
    try:
        # If a folder has the name of a preset, the preset is meant.
        exists = bool(argument) and path.exists() and not (path.is_dir() and is_preset)
    except (OSError, ValueError):  # no permission to look there, or not a valid file name
        exists = False
    if is_local or (exists and (path.is_dir() or is_archive(path))):
        if box is not None:
            raise _unused_box(argument)
        return probe("/" if is_local else path)
    if exists:
        text = read_text(path)
        skeletons: Skeletons | None = Names(SKELETONS).find_only(None)
        if skeletons is not None and skeletons.is_one(text):
            return skeletons.fill(text, argument, probe())
        own = None if box is None else find_place_formats("box").read_box(box, resolve)
        return read_topology_text(text, argument, own)
    if not is_preset and ("/" in argument or path.suffix[1:].isalpha()):
        raise InputError(
            f"{argument}: no such file; expected a topology file, 'local', or a preset such as "
            "dgx1 or ring:8"
        )
    machine = preset(argument)
    if box is not None:
        raise _unused_box(argument)
    return machine


def _unused_box(argument: str) -> InputError:
    return InputError(
        f"{argument}: a box is only for files that say where hosts are, and this is none; leave "
        "it out",
        parameter="box",
    )


def is_archive(path: Path) -> bool:
    """Return whether a path is a tar archive, compressed or not, by its first bytes."""
    start = read_start(path, 262 + 3)
    return start.startswith((b"BZh", b"\x1f\x8b", b"\xfd7zXZ\0")) or start[257:262] == b"ustar"


def read_text(path: Path) -> str:
    """Return the text of a file that a user names; raise InputError if it is none, or too large."""
    try:
        raw = read_file(path, MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(
            f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; no topology is, so it is not read"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: byte {error.start + 1} is not UTF-8 text; expected a text file that "
            "describes a topology"
        ) from None
