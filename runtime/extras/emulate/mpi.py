"""Start ranks with Open MPI inside an emulated machine.

mpirun runs in rank 0's namespace. In place of ssh it calls an agent, a script that enters the
namespace of the requested host.

Each host has a separate name (a UTS namespace), so that Open MPI takes it for a machine and sends
by TCP between identity addresses, each pair over its own route. Hosts that cables join get no
settings for their networks. All processes die with the one that started them, as elsewhere on
emulated machines: mpirun with this process, Open MPI's daemons with mpirun, a rank with its daemon.
Open MPI does not notice a cut link by itself: mpirun would wait for daemons that cannot reach it,
and they for mpirun.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ....topo.errors import InputError
from ...environment import TRANSPORT
from ...ranks.launch import run_together
from .cabled_network import CabledNetwork
from .network import IDENTITY, EmulationError, Network, die_with_parent, why_not
from .ranks import list_rank_variables, share_folder, show_code, write_topology
from .rehearsal import Rehearsal, rehearse

_DEFAULTS: Mapping[str, str] = {
    "OMPI_MCA_mpi_yield_when_idle": "1",  # all hosts share this one's cores
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    # Messages up to 1 MiB are sent without a handshake, whose answer would wait behind everything
    # that is queued on a loaded link.
    "OMPI_MCA_btl_tcp_eager_limit": "1048576",
    "OMPI_MCA_btl_tcp_rndv_eager_limit": "1048576",
    "OMPI_MCA_btl_tcp_max_send_size": "1048576",
    "OMPI_MCA_btl_tcp_free_list_inc": "8",
    "MPI4PY_MPIABI": "openmpi",  # its wheels take any MPI that they find
    "OMP_NUM_THREADS": "1",
}
# Open MPI's networks on a machine with routes between all ranks.
_IDENTITIES: Mapping[str, str] = {
    "pml": "ob1",
    "btl": "tcp,self",
    "btl_tcp_if_include": IDENTITY,
    "btl_tcp_disable_family": "6",
    "oob_tcp_if_include": IDENTITY,
    "oob_tcp_disable_ipv6_family": "1",
}
_AS_ROOT: Mapping[str, str] = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_START_RANK = """\
#!/bin/sh
# The environment of this rank, and its command.
folder=${0%/*}
echo $$ > "$folder/rank$OMPI_COMM_WORLD_RANK.pid"
. "$folder/rank$OMPI_COMM_WORLD_RANK.env"
exec >"$folder/stdout" 2>"$folder/stderr"
exec setpriv --pdeathsig KILL "$@"\
"""
# Time to read output that is in the pipes when mpirun has ended; reading takes milliseconds.
_LAST_OUTPUT_S = 2.0
# Time for mpirun to end after its last rank: less than a second, unless the daemons' reports no
# longer reach it.
_LAST_REPORT_S = 10.0
# Polling interval of the ranks; each poll reads one file per rank.
_LOOK_S = 0.5


@dataclass(frozen=True)
class OpenMpi:
    """An installed Open MPI: the path of its `mpirun`, and its major `version`."""

    mpirun: str
    version: int

    def list_options(
        self, folder: Path, agent: Path, networks: Mapping[str, str] = _IDENTITIES
    ) -> list[str]:
        """Return mpirun's options to send over emulated links only, and reach hosts by `agent`.

        `agent` is the script of `write_agent`; `folder` is for files that mpirun needs; `networks`
        are Open MPI's settings of which networks to use, by variable.
        """
        remote, runtime = ("rsh", "orte") if self.version < 5 else ("ssh", "prte")
        settings = {
            "plm": remote,
            f"plm_{remote}_agent": str(agent),
            f"plm_{remote}_no_tree_spawn": "1",  # mpirun itself starts all daemons ...
            f"{runtime}_leave_session_attached": "1",  # ... and they stay its children
            f"{runtime}_tmpdir_base": str(folder),
            **networks,
        }
        # Without a prefix the agent is given one command, which can take the shell's place.
        return [
            "--noprefix",
            *(word for name, value in settings.items() for word in ("--mca", name, value)),
        ]

    def list_hosts(self, hosts: Sequence[str]) -> list[str]:
        """Return mpirun's options that put one rank on each of `hosts`, in their order.

        A host with several ranks is listed that many times, in succession.
        """
        return [
            *(["--quiet"] if self.version < 5 else []),
            "-np",
            str(len(hosts)),
            "--host",
            ",".join(f"{host}:{number}" for host, number in Counter(hosts).items()),
            "--map-by",
            "slot",
        ]


def find_open_mpi() -> OpenMpi:
    """Return the Open MPI of the first mpirun in PATH; raise EmulationError if there is none."""
    if shutil.which("setpriv") is None:
        raise EmulationError(
            "setpriv: not found; install util-linux (Debian: apt-get install util-linux)"
        )
    refused = ""
    for name in ("mpirun", "mpirun.openmpi"):  # on Debian the first may be MPICH's
        path = shutil.which(name)
        if path is None:
            continue
        asked = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **_AS_ROOT},
        )
        if version := re.search(r"\(Open MPI\) ([45])\.", asked.stdout):
            return OpenMpi(path, int(version[1]))
        answer = " ".join((asked.stdout or asked.stderr).split()[:6])
        refused = refused or (
            f"{path} is MPICH's, which would send through memory"
            if "HYDRA" in asked.stdout
            else f"{path} is another ({answer:.60})"
        )
    raise EmulationError(
        f"{refused or 'mpirun: not found'}; expected Open MPI 4 or 5 (Debian: apt-get install "
        "openmpi-bin; in a checkout: sh scripts/system-packages.sh)"
    )


def why_not_mpi() -> str | None:
    """Return why Open MPI cannot start ranks on emulated machines on this host; None if it can."""
    try:
        find_open_mpi()
    except EmulationError as error:
        return why_not() or str(error)
    return why_not()


def enter_host(namespace: str, name: str) -> list[str]:
    """Return a command prefix that enters a network namespace, given by its file, as `name`."""
    rename = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *("nsenter", f"--net={namespace}", "--"),
        *("unshare", "--uts", "--", "sh", "-c", rename, name),
    ]


def write_agent(folder: Path, hosts: Mapping[str, Sequence[str]]) -> Path:
    """Write the script that replaces ssh (`agent HOST COMMAND`) into a folder; return its path.

    `hosts` maps host names to the command prefixes that enter them.
    """
    # The daemon replaces the shell: if the shell forked, it would die with mpirun, but the daemon
    # would not.
    cases = [
        f'{host}) exec {shlex.join(prefix)} sh -c "exec $*" ;;' for host, prefix in hosts.items()
    ]
    return _write_script(
        folder / "agent",
        "#!/bin/sh",
        "host=$1; shift",
        'case "$host" in',
        *cases,
        "esac",
        'echo "$host: no host of this emulated machine" >&2; exit 255',
    )


def list_mpirun(
    mpi: OpenMpi,
    folder: Path,
    hosts: Mapping[str, Sequence[str]],
    *arguments: str,
    networks: Mapping[str, str] = _IDENTITIES,
) -> list[str]:
    """Return the command that runs mpirun on the first host; `arguments` follow its options.

    `hosts` maps host names to the command prefixes that enter them; `folder` is for files that
    mpirun needs; `networks` are Open MPI's settings of which networks to use, by variable.
    """
    return [
        *next(iter(hosts.values())),
        mpi.mpirun,
        *mpi.list_options(folder, write_agent(folder, hosts), networks),
        *arguments,
    ]


class Mpirun(subprocess.Popen[bytes]):
    """A running mpirun, in its own session with its daemons and ranks.

    With `watch`, a folder in which each of `ranks` ranks writes its process id (`rank0.pid`), it is
    ended at most `last_report_s` seconds after its ranks have ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        watch: Path | None = None,
        ranks: int = 0,
        last_report_s: float = _LAST_REPORT_S,
    ) -> None:
        self._last_report_s = last_report_s
        self._files = [] if watch is None else [watch / f"rank{rank}.pid" for rank in range(ranks)]
        self._looks_at = self._gone_since = 0.0
        super().__init__(
            command,
            env={**_DEFAULTS, **os.environ, **_AS_ROOT},
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
            start_new_session=True,
        )

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; end mpirun soon after its ranks."""
        code = super().poll()
        if code is None and self._outlives_its_ranks():
            print(
                "topo-emulate: all ranks have ended and mpirun has not, since a link between them "
                "is cut; it was ended",
                file=sys.stderr,
            )
            self.kill()
            self.wait()
            self.returncode = code = 1
        return code

    def _outlives_its_ranks(self) -> bool:
        now = time.monotonic()
        if not self._files or now < self._looks_at:
            return False
        self._looks_at = now + _LOOK_S
        if not all(map(_has_ended, self._files)):
            self._gone_since = 0.0
            return False
        self._gone_since = self._gone_since or now
        return now - self._gone_since > self._last_report_s

    def end_session(self) -> None:
        """Kill the remaining processes of its session, such as daemons that mpirun cannot reach."""
        for process in (int(x.name) for x in Path("/proc").iterdir() if x.name.isdecimal()):
            if _read_status(process)[1] == self.pid:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def _has_ended(file: Path) -> bool:
    """Return whether the process with the id in a file has ended; False without the file."""
    try:
        return _read_status(int(file.read_text(encoding="utf-8")))[0] in ("", "Z")
    except (FileNotFoundError, ValueError):
        return False


def _read_status(process: int) -> tuple[str, int]:
    """Return a process's state (Z: ended, not yet reaped) and session; ("", 0) if there is none."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    # After the name, which may itself contain brackets: state, parent, group, session.
    state, _, _, session, *_ = status.rpartition(")")[2].split()
    return state, int(session)


def run_mpi_ranks(
    network: Network, mpi: OpenMpi, command: Sequence[str], rehearsal: Rehearsal | None = None
) -> int:
    """Run `command` once per rank under Open MPI, with MPI's rank i in rank i's namespace.

    `rehearsal` has the faults to cause meanwhile. On hosts that cables join, Open MPI gets no
    settings for its networks; raise InputError if there the ranks of a host do not follow each
    other. Return 0, or mpirun's exit code, which is that of the first failed rank.
    """

    def kill(rank: int) -> None:
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):  # it does not run
            os.kill(int((folder / f"rank{rank}.pid").read_text(encoding="utf-8")), signal.SIGKILL)

    home = network.blueprint.home
    names, hosts, networks = _list_hosts(network)
    with share_folder() as folder:
        write_topology(network, folder)
        for rank in range(len(home)):
            if isinstance(network, CabledNetwork):
                variables = network.list_host_variables(rank, folder)
            else:
                variables = list_rank_variables(network, rank, folder)
                variables[TRANSPORT] = os.environ.get(TRANSPORT, "mpi")
            (folder / f"rank{rank}.env").write_text(
                "".join(
                    f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()
                ),
                encoding="utf-8",
            )
        started = list_mpirun(
            mpi,
            folder,
            hosts,
            *mpi.list_hosts(names),
            str(_write_script(folder / "start", _START_RANK)),
            *command,
            networks=networks,
        )
        with _forward_output(folder), rehearse(network, rehearsal, folder, kill):
            mpirun = Mpirun(started, folder, len(home))
            try:
                return show_code(*run_together(lambda _: mpirun, 1))
            finally:
                mpirun.end_session()


def _list_hosts(
    network: Network,
) -> tuple[list[str], dict[str, list[str]], Mapping[str, str]]:
    """Return each rank's host, how to enter the hosts by name, and settings of their networks.

    Raise InputError if the ranks of a host do not follow each other, as mpirun numbers them.
    """
    home = network.blueprint.home
    if not isinstance(network, CabledNetwork):
        names = [f"rank{rank}" for rank in range(len(home))]
        files = map(network.namespace_of, home)
        return names, dict(zip(names, map(enter_host, files, names), strict=True)), _IDENTITIES
    names = [network.cabling.hosts[seat] for seat in home]
    if len(list(groupby(names))) > len(set(names)):
        raise InputError(
            f"hosts of the ranks: {', '.join(names)}; expected the ranks of each host one after "
            "the other, as mpirun numbers them",
            parameter="order",
        )
    die_with_mpirun = ["setpriv", "--pdeathsig", "KILL"]
    entered = zip(names, home, strict=True)
    return names, {name: [*die_with_mpirun, *network.enter(i)] for name, i in entered}, {}


@contextmanager
def _forward_output(folder: Path) -> Iterator[None]:
    """Print the output of ranks from pipes: Open MPI 4 loses the output of one run in sixty."""
    ends, readers = [], []
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            pipe = folder / name
            os.mkfifo(pipe, 0o600)
            # Readers do not end before this is closed.
            ends.append(os.open(pipe, os.O_RDWR | os.O_CLOEXEC))
            readers.append(
                subprocess.Popen(["cat", pipe], stdout=number, preexec_fn=die_with_parent)
            )
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


def _write_script(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    path.chmod(0o700)
    return path
