"""Ranks that Open MPI starts inside an emulated machine: mpirun runs in rank 0's namespace, and reaches the other hosts by
an agent in place of ssh, a script that enters the namespace of the host that it is asked for.

Each host has a name of its own (a UTS namespace), so that Open MPI takes it for a machine of its own and sends by TCP,
between identity addresses: these have each pair's own route. All processes die with the one that started them, as elsewhere on
emulated machines: mpirun with this process, Open MPI's daemons with mpirun, a rank with its daemon.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..ranks.launch import TRANSPORT, run_together
from .network import IDENTITY, EmulationError, Network, die_with_parent, why_not
from .ranks import list_rank_variables, share_folder, show_code, write_topology

_DEFAULTS: Mapping[str, str] = {
    "OMPI_MCA_mpi_yield_when_idle": "1",  # all hosts share this one's cores
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    # Up to 1 MiB goes without asking whether it may: on a loaded link the answer waits behind all that is queued there.
    "OMPI_MCA_btl_tcp_eager_limit": "1048576",
    "OMPI_MCA_btl_tcp_rndv_eager_limit": "1048576",
    "OMPI_MCA_btl_tcp_max_send_size": "1048576",
    "OMPI_MCA_btl_tcp_free_list_inc": "8",
    "MPI4PY_MPIABI": "openmpi",  # its wheels take any MPI that they find
    "OMP_NUM_THREADS": "1",
}
_AS_ROOT: Mapping[str, str] = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_EXPECTED = (
    "expected Open MPI 4 or 5 (Debian: apt-get install openmpi-bin; in a checkout: sh scripts/system-packages.sh)"
)
_ENTER = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
_START_RANK = """\
#!/bin/sh
# The environment of this rank, and its command.
folder=${0%/*}
. "$folder/rank$OMPI_COMM_WORLD_RANK.env"
exec >"$folder/stdout" 2>"$folder/stderr"
exec setpriv --pdeathsig KILL "$@"
"""


_LAST_OUTPUT_S = 2.0


@dataclass(frozen=True)
class OpenMpi:
    """An mpirun: its path, and the major version of its Open MPI."""

    mpirun: str
    version: int

    def list_options(self, folder: Path, agent: Path) -> list[str]:
        """Return the options that make it send over emulated links and nothing else, and reach hosts by the agent."""
        remote, runtime = ("rsh", "orte") if self.version < 5 else ("ssh", "prte")
        settings = {
            "plm": remote,
            f"plm_{remote}_agent": str(agent),
            f"plm_{remote}_no_tree_spawn": "1",  # mpirun itself starts all daemons ...
            f"{runtime}_leave_session_attached": "1",  # ... and they stay its children
            f"{runtime}_tmpdir_base": str(folder),
            "pml": "ob1",
            "btl": "tcp,self",
            "btl_tcp_if_include": IDENTITY,
            "btl_tcp_disable_family": "6",
            "oob_tcp_if_include": IDENTITY,
            "oob_tcp_disable_ipv6_family": "1",
        }
        return [word for name, value in settings.items() for word in ("--mca", name, value)]

    def list_hosts(self, hosts: Sequence[str]) -> list[str]:
        """Return the options that put one rank on each host, in their order."""
        quiet = ["--quiet"] if self.version < 5 else []
        return [*quiet, "-np", str(len(hosts)), "--host", ",".join(f"{host}:1" for host in hosts), "--map-by", "node"]


def find_open_mpi() -> OpenMpi:
    """Return the Open MPI whose mpirun is found first. Raises EmulationError, with what to install, where there is none."""
    if shutil.which("setpriv") is None:
        raise EmulationError("--mpi: setpriv: not found; install util-linux (Debian: apt-get install util-linux)")
    refused = ""
    for name in ("mpirun", "mpirun.openmpi"):  # Debian has the second where MPICH is the first
        path = shutil.which(name)
        if path is None:
            continue
        asked = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=False, env={**os.environ, **_AS_ROOT}
        )
        found = re.search(r"\(Open MPI\) ([45])\.", asked.stdout)
        if found is not None:
            return OpenMpi(path, int(found[1]))
        said = " ".join((asked.stdout or asked.stderr).split()[:6])
        what = "MPICH's, which would send through memory" if "HYDRA" in asked.stdout else f"another ({said:.60})"
        refused = refused or f"{path} is {what}"
    raise EmulationError(f"--mpi: {refused or 'mpirun: not found'}; {_EXPECTED}")


def why_not_mpi() -> str | None:
    """Return why Open MPI can start no ranks on emulated machines here, or None."""
    reason = why_not()
    if reason is None:
        try:
            find_open_mpi()
        except EmulationError as error:
            return str(error)
    return reason


def enter_host(namespace: str, name: str) -> list[str]:
    """Return the prefix that makes a command run in a network namespace, given its file, on a host of that name."""
    renamed = ["unshare", "--uts", "--", "sh", "-c", _ENTER, name]
    return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={namespace}", "--", *renamed]


def write_agent(folder: Path, hosts: Mapping[str, str]) -> Path:
    """Write a script into a folder that takes ssh's place (`agent HOST COMMAND`), given hosts' names with the files of their
    namespaces; return its path.
    """
    cases = [f'{host}) exec {shlex.join(enter_host(file, host))} sh -c "$*" ;;' for host, file in hosts.items()]
    lines = ["#!/bin/sh", "host=$1; shift", 'case "$host" in', *cases, "esac"]
    lines += ['echo "$host: no host of this emulated machine" >&2; exit 255']
    return _write_script(folder / "agent", "\n".join(lines) + "\n")


def list_mpirun(mpi: OpenMpi, folder: Path, hosts: Mapping[str, str], *arguments: str) -> list[str]:
    """Return the command that runs mpirun on the first host, given names with files of namespaces. `folder` is for what
    it needs.
    """
    agent = write_agent(folder, hosts)
    first = next(iter(hosts))
    return [*enter_host(hosts[first], first), mpi.mpirun, *mpi.list_options(folder, agent), *arguments]


def start_mpirun(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start what `list_mpirun` gives, in a session of its own."""
    return subprocess.Popen(
        command,
        env={**_DEFAULTS, **os.environ, **_AS_ROOT},
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
        start_new_session=True,
    )


def run_mpi_ranks(network: Network, mpi: OpenMpi, command: Sequence[str]) -> int:
    """Run `command` once a rank, started by Open MPI, rank i of MPI in the namespace of rank i; 0, or the exit code of mpirun,
    which is that of the first failed rank.
    """
    ranks = range(len(network.blueprint.home))
    hosts = {f"rank{rank}": network.namespace_of(network.blueprint.home[rank]) for rank in ranks}
    with share_folder() as folder:
        write_topology(network, folder)
        for rank in ranks:
            over = os.environ.get(TRANSPORT, "mpi")
            variables = list_rank_variables(network, rank, folder) | {TRANSPORT: over}
            lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
            (folder / f"rank{rank}.env").write_text("".join(lines), encoding="utf-8")
        start = _write_script(folder / "start", _START_RANK)
        placed = [*mpi.list_hosts(list(hosts)), str(start), *command]
        started = list_mpirun(mpi, folder, hosts, *placed)
        with _forward_output(folder):
            return show_code(*run_together(lambda _: start_mpirun(started), 1))


@contextmanager
def _forward_output(folder: Path) -> Iterator[None]:
    """Print, where this process does, what ranks write into pipes in a folder: Open MPI 4 loses what one run in some
    sixty prints.
    """
    ends, readers = [], []
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            pipe = folder / name
            os.mkfifo(pipe, 0o600)
            ends.append(os.open(pipe, os.O_RDWR | os.O_CLOEXEC))  # readers do not end before this is closed
            readers.append(subprocess.Popen(["cat", pipe], stdout=number, preexec_fn=die_with_parent))
        yield
    finally:
        for end in ends:
            os.close(end)
        for reader in readers:
            try:
                reader.wait(_LAST_OUTPUT_S)
            except subprocess.TimeoutExpired:  # something that a rank started still holds the pipe
                reader.kill()
                reader.wait()


def _write_script(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)
    return path
