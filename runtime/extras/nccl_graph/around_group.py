"""Make NCCL read a graph file for one communicator: `with topoplan.nccl_graph(plan): ...`.

NCCL reads NCCL_GRAPH_FILE whenever it makes a communicator, and fails if the communicator's GPUs
are not exactly the file's, so the variable must not stay set for subgroups. A graph file fixes
NCCL's rings and its chains, paths through all GPUs of a host that NCCL calls trees.
"""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ....synth.extras.nccl_files.export import NCCL_GRAPH, export
from ....synth.extras.nccl_files.graph_check import check_graph_file
from ....synth.extras.nccl_files.graph_file import (
    MAX_CHARACTERS,
    GraphFile,
    looks_like_graph_file,
    read_graph_file,
)
from ....synth.extras.stock.constants import OVER_RINGS
from ....synth.extras.stock.nccl_version import NEWEST, parse_nccl_version
from ....synth.ir.collective import collective_on
from ....synth.numeric.effort import USUAL_LIMIT_S, Effort
from ....synth.plan import Plan
from ....topo.errors import InputError
from ....topo.graph import Topology
from ....topo.loader.resolve import load_for_planning
from ....topo.routes import Router
from ...ranks.launchers import LAUNCHERS

VARIABLE = "NCCL_GRAPH_FILE"


@contextmanager
def nccl_graph(
    plan_or_topology: Plan | Topology | str | os.PathLike[str],
    *,
    nccl_version: str | None = None,
    time_limit_s: float = USUAL_LIMIT_S,
    guard: bool = True,
    hosts: int | None = None,
) -> Iterator[Path | None]:
    """Set NCCL_GRAPH_FILE inside the `with`, for the rings and chains predicted to be the fastest.

    Takes a plan (its topology and collective), a topology, an argument of `load` (a preset, a file,
    `local`), or the path of a graph file, which is checked and used unchanged. PyTorch makes a
    communicator at its group's first collective, so call one inside. Yields the file's path; a file
    made for this is removed, and the variable restored. If the file needs NCCL_NVB_DISABLE=1, that
    is set and restored, too. With `guard`, yields None and leaves the environment alone where stock
    NCCL is modelled to be as fast on the machine. `hosts` is how many hosts the communicator's GPUs
    are on: by default those of the job, from torchrun's or the launcher's variables; a file for one
    host is refused in a communicator of several, and the other way round. Raise InputError or
    InfeasibleError, and leave the environment alone, if there can be no such file for the machine.
    `nccl_version` is such as "2.27" (default: the newest known); searches stop after `time_limit_s`
    seconds.
    """
    version = parse_nccl_version(nccl_version) if nccl_version else NEWEST
    existing = (
        None
        if isinstance(plan_or_topology, (Plan, Topology))
        else _find_graph_file(plan_or_topology)
    )
    if existing is not None:
        path, text = existing
        file = read_graph_file(text, str(path))
        check_graph_file(file, version=version)
        _check_hosts(file, hosts)
        with _set_variables({VARIABLE: str(path.resolve())}):
            yield path
        return
    router, name = _find_router(plan_or_topology)
    made = export(
        NCCL_GRAPH,
        collective_on(name, router.topology),
        router,
        Effort(time_limit_s),
        version=version,
        guard=guard,
        hosts=_count_hosts()[0] if hosts is None else hosts,
    )
    if made.reason is not None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="topoplan-graph-") as folder:
        path = Path(folder) / "graph.xml"
        path.write_text(made.text, encoding="utf-8")
        with _set_variables({VARIABLE: str(path), **made.environment}):
            yield path


def _check_hosts(file: GraphFile, hosts: int | None) -> None:
    """Raise InputError if a file for one host is for a communicator of several, or the reverse."""
    of_job, why = _count_hosts()
    number, said = (of_job, f" ({why})" if why else "") if hosts is None else (hosts, "")
    has_nets = any(nets for graph in file.graphs for nets in graph.nets)
    if number > 1 and not has_nets:
        raise InputError(
            f"{file.where}: its channels have no <net>, so it is for one host, and the job has "
            f"{number}{said}: NCCL would send all channels through one NIC; write a file for "
            f"{number} hosts, or pass hosts=1 if all GPUs of the communicator are on one host"
        )
    if number == 1 and has_nets:
        raise InputError(
            f"{file.where}: its channels have <net>, so it is for several hosts, and the job has "
            f"one{said}; write a file for one host, or pass the communicator's number of hosts "
            "as hosts="
        )


def _count_hosts() -> tuple[int, str]:
    """Return the number of equal hosts of this process's job, and the variables that say so.

    They are torchrun's, then the launchers'. One host, by no variable, if none are set.
    """
    names = [("WORLD_SIZE", "LOCAL_WORLD_SIZE"), *((x.ranks, x.on_host) for x in LAUNCHERS)]
    for pair in names:
        # Slurm's is a list such as 8(x2), of as many ranks on two hosts.
        numbers = [re.match(r"\d{1,9}", os.environ.get(name, "")) for name in pair]
        if all(numbers):
            ranks, on_host = (int(match[0]) for match in numbers if match)
            if on_host:
                texts = (f"{name}={os.environ[name]}" for name in pair)
                return max(-(-ranks // on_host), 1), ", ".join(texts)
    return 1, ""


@contextmanager
def _set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _find_graph_file(argument: str | os.PathLike[str]) -> tuple[Path, str] | None:
    """Return the path and text of a graph file, None for a topology or a plan."""
    path = Path(argument)
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CHARACTERS + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not looks_like_graph_file(raw.decode("utf-8", "replace")):
        return None
    try:
        return path, raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: byte {error.start + 1} is not UTF-8 text; expected a graph file"
        ) from None


def _find_router(argument: Plan | Topology | str | os.PathLike[str]) -> tuple[Router, str]:
    """Return the router of the machine to write a graph for, and the collective."""
    if isinstance(argument, (str, os.PathLike)):
        path = Path(argument)
        if path.is_file() and b'"topoplan-plan"' in path.read_bytes()[:4096]:
            argument = Plan.load(path)
    if not isinstance(argument, Plan):
        return load_for_planning(argument)[1], "allreduce"
    name = argument.collective.name
    return argument.router, name if name in OVER_RINGS else "allreduce"
