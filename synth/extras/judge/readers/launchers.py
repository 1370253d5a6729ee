"""The number of processes that a command line starts, as launchers spell it.

These are MPI's, Slurm's and PyTorch's. A number that is a variable, or a range, is unknown.
"""

import re

_NUMBER = r"(?: +|=)?([1-9]\d{0,5})(?![\w:\-])"
_PROCESSES = (
    re.compile(rf"(?<!\S)--?np{_NUMBER}"),
    re.compile(rf"(?<!\S)(?:-n|--n|--ntasks){_NUMBER}"),
)
_PER_NODE = re.compile(
    r"(?<!\S)(?:--ntasks-per-node|--?ppn|--?npernode|--?perhost|--nproc[-_]per[-_]node)"
    rf"{_NUMBER}|\bppr:([1-9]\d{{0,3}}):node\b"
)
# Slots of a host have at most four digits.
_MAX_SLOTS = 10_000
_NODES = re.compile(rf"(?<!\S)(?:--nodes|--nnodes){_NUMBER}")
# Hosts of Open MPI, with or without their slots.
_HOSTS = re.compile(
    r"(?<!\S)(?:-H|--?host)(?: +|=)([\w.\-]+(?::\d{1,4})?(?:,[\w.\-]+(?::\d{1,4})?)*)"
)
# -N is a number of nodes to Slurm, and of processes on each to MPI; to others it is something else.
_SLURM = re.compile(r"srun|salloc|sbatch|flux")
_MPI = re.compile(r"mpirun|mpiexec|orterun|prterun")
_TORCH = re.compile(r"torchrun|torch\.distributed")
_LAUNCHER = rf"{_SLURM.pattern}|{_MPI.pattern}|{_TORCH.pattern}|aprun|jsrun"
_SHORT = re.compile(rf"\b({_LAUNCHER}|numactl)\b|(?<!\S)-N{_NUMBER}")


def count_processes(command: str, directives: str = "") -> int:
    """Return the number of processes of a launcher's command line; 0 if it does not say it.

    `command` is the text before the program that is started. `directives` are the options that a
    batch script gives Slurm, which hold for what the command line leaves open.
    """
    count, nodes, each = _read(command)
    if not (count or nodes * each) and directives and names_launcher(command):
        given, more, per_node = _read(f"sbatch {directives}")
        return given or (nodes or more) * (each or per_node)
    return count or nodes * each


def count_hosts(command: str, directives: str = "") -> int:
    """Return the number of hosts on which a command line starts processes; 0 if it does not say it.

    The arguments are those of `count_processes`.
    """
    count, (nodes, each) = _read(command)[0], _read_layout(command)
    if not (nodes or count or each) and directives and names_launcher(command):
        given = f"sbatch {directives}"
        count, (nodes, each) = _read(given)[0], _read_layout(given)
    if _MPI.search(command) and (match := _HOSTS.search(command)) is not None:
        return _fill(match[1].split(","), count)
    return nodes or (-(-count // each) if each else 0)


def _fill(listed: list[str], count: int) -> int:
    """Return how many hosts of a list have processes, of which each host takes its slots' number.

    `count` is 0 if the number of processes is not stated, as then all slots are taken.
    """
    used: set[str] = set()
    free = count or len(listed) * _MAX_SLOTS
    for host, _, slots in (entry.partition(":") for entry in listed):
        if free > 0:
            used.add(host)
            free -= int(slots or 1)
    return len(used)


def names_launcher(command: str) -> bool:
    """Return whether a command line has a launcher, so that it may start several processes."""
    return re.search(rf"\b(?:{_LAUNCHER})\b", command) is not None


def _read(command: str) -> tuple[int, int, int]:
    """Return the processes, the nodes, and the processes on each node; 0 for what is not said."""
    for pattern in _PROCESSES:
        if (match := pattern.search(command)) is not None:
            return int(match[1]), 0, 0
    nodes, each = _read_layout(command)
    if _MPI.search(command) and (match := _HOSTS.search(command)) is not None:
        hosts = match[1].split(",")
        nodes = nodes or len(hosts)
        if not each and all(":" in host for host in hosts):
            return sum(int(host.rpartition(":")[2]) for host in hosts), 0, 0
    if not nodes and _TORCH.search(command) is not None and "--nnodes" not in command:
        nodes = 1
    return 0, nodes, each


def _read_layout(command: str) -> tuple[int, int]:
    """Return the nodes and the processes on each that options state, 0 for what is not said."""
    nodes, each = _read_short(command)
    if (match := _NODES.search(command)) is not None:
        nodes = int(match[1])
    if (match := _PER_NODE.search(command)) is not None:
        each = int(match[1] or match[2])
    return nodes, each


def _read_short(command: str) -> tuple[int, int]:
    """Return the nodes and the processes on each that options -N state, 0 if none does."""
    program, nodes, each = "", 0, 0
    for name, number in _SHORT.findall(command):
        if name:
            program = name
        elif _SLURM.fullmatch(program):
            nodes = nodes or int(number)
        elif _MPI.fullmatch(program):
            each = each or int(number)
    return nodes, each
