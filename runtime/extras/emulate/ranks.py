"""Start and end the processes of ranks inside an emulated machine, with their environment."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from ....synth.cost.host_costs import HostCosts, host_of, with_host
from ...ranks.launch import EMULATED, READY, RENDEZVOUS, list_errors, run_together
from .cabled_network import CabledNetwork
from .network import BURST_USED, IDENTITY, WIRE, Network, die_with_parent
from .rehearsal import Rehearsal, rehearse

_PORT = 29500  # torchrun's; the network is this machine's own
# Wait until the input is closed, and for writers to the folder to die, then remove it.
_REMOVE = 'read -r _; sleep 0.5; rm -rf -- "$0" || { sleep 5; rm -rf -- "$0"; }'


class RankProcess(subprocess.Popen[bytes]):
    """The process of one rank, in its own session; a rehearsed fault may kill it."""

    _is_killed = False

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; 0 if `kill_on_purpose` killed it.

        So the run goes on, to show how the other ranks react.
        """
        return 0 if self._is_killed else super().poll()

    def kill_on_purpose(self) -> None:
        """Kill the rank and all processes of its session (SIGKILL), as a rehearsed fault."""
        if super().poll() is None:
            self._is_killed = True
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(self.pid, signal.SIGKILL)


def start_rank(
    network: Network, rank: int, command: list[str], folder: Path, output: IO[bytes] | None = None
) -> RankProcess:
    """Start `command` as one rank in its namespace and its own session.

    It prints to `output` (default: where this process does). `folder` is shared by all ranks of a
    run and holds the topology (`write_topology`).
    """
    return RankProcess(
        [*network.enter_rank(rank), *command],
        env={"OMP_NUM_THREADS": "1", **os.environ, **list_rank_variables(network, rank, folder)},
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
        start_new_session=True,
        stdout=output,
        stderr=output,
    )


def list_rank_variables(network: Network, rank: int, folder: Path) -> dict[str, str]:
    """Return the environment variables to add for a rank: its number, the rendezvous, the machine.

    `folder` is shared by all ranks of a run and holds the topology (`write_topology`).
    """
    if isinstance(network, CabledNetwork):
        return network.list_variables(rank, folder)
    ranks = str(len(network.blueprint.home))
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": network.blueprint.identity(0),
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": IDENTITY,
        "TP_SOCKET_IFNAME": IDENTITY,
        "NCCL_SOCKET_IFNAME": IDENTITY,
        RENDEZVOUS: str(folder / "rendezvous"),
        EMULATED: str(folder / "topology.json"),
        READY: str(folder),
    }


def write_topology(network: Network, folder: Path) -> None:
    """Write the emulated topology, with its host costs, into `folder`, where the ranks read it."""
    topology = network.blueprint.topology
    host = replace(host_of(topology) or HostCosts(), burst_bytes=BURST_USED, wire=WIRE)
    (folder / "topology.json").write_text(with_host(topology, host).dumps(), encoding="utf-8")


def run_ranks(network: Network, command: list[str], rehearsal: Rehearsal | None = None) -> int:
    """Run `command` once per rank; return 0, or the exit code of the rank at fault.

    The ranks print to this process's output. If one fails, all are ended, unless `rehearsal`, the
    faults to cause meanwhile, killed it; then the first error of a rank is said last.
    """
    ranks: dict[int, RankProcess] = {}

    def start(rank: int) -> RankProcess:
        ranks[rank] = start_rank(network, rank, command, folder)
        return ranks[rank]

    def kill(rank: int) -> None:
        if rank in ranks:  # else it has not started yet
            ranks[rank].kill_on_purpose()

    with share_folder() as folder, rehearse(network, rehearsal, folder, kill):
        write_topology(network, folder)
        failed, code = run_together(start, len(network.blueprint.home))
        if rehearsal is not None and failed is not None:
            for error in list_errors(folder)[:1]:  # below what ranks printed until they ended
                rehearsal.say(error)
        return show_code(failed, code)


@contextmanager
def share_folder() -> Iterator[Path]:
    """Make a temporary folder for the ranks of a run, for as long as the `with` block lasts.

    It is removed even if this process is killed.
    """
    with tempfile.TemporaryDirectory(prefix="topoplan-") as name:
        # In a separate session, it outlives this process, whose end closes its input.
        remover = subprocess.Popen(
            ["sh", "-c", _REMOVE, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield Path(name)
        finally:
            remover.kill()
            remover.communicate()


def show_code(failed: int | None, code: int) -> int:
    """Return this process's exit code, given the rank that failed or None, and its code.

    0 if no rank failed, 128 plus the signal's number if a signal ended it.
    """
    return 0 if failed is None else code if code >= 0 else 128 - code
