"""Starting the processes of a test: ranks that run a function of `ranks/`, and commands that end in
time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import ParamSpec, TypeVar

import patience

from topoplan.runtime.emulate import Network
from topoplan.runtime.emulate.ranks import list_rank_variables, write_topology
from topoplan.runtime.ranks.launch import FROZEN, ForkedProcess

P = ParamSpec("P")
T = TypeVar("T")
Ended = subprocess.CompletedProcess[str]

# Ranks and commands are forked from one server that has imported torch: importing it takes longer
# than most of what they do.
_SERVER = multiprocessing.get_context("forkserver")
_COMMANDS = [
    "topoplan.cli.lab",
    "topoplan.cli.probe",
    "topoplan.cli.report",
    "topoplan.cli.run",
    "topoplan.cli.synth",
]
_WHAT_COMMANDS_IMPORT = [
    "topoplan.runtime.lab.runs",
    "topoplan.runtime.measuring.bench",
    "topoplan.runtime.register",
    "topoplan.synth.planner.synthesize",
]
_WHAT_MODELS_IMPORT = [
    "torch._dynamo",
    "torch.distributed.fsdp",
]  # DistributedDataParallel does, when one is made
_SERVER.set_forkserver_preload(
    [
        "pytest",
        "command_process",
        "rank_process",
        "ranks.checks",
        *_COMMANDS,
        *_WHAT_COMMANDS_IMPORT,
        *_WHAT_MODELS_IMPORT,
        FROZEN,
    ]
)
_PATHS = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
_SPAWN = multiprocessing.get_context("spawn")


def run_ranks(body: Callable[P, T], world: int, *args: P.args, **_: P.kwargs) -> list[T]:
    """Run a function of `ranks/` in `world` real processes, joined over gloo; return what it
    returns, by rank.

    Arguments and results travel as JSON. AssertionError with what a rank printed where one fails.
    """
    return _run(body, args, [{} for _ in range(world)], "gloo", 150)


def run_on_hosts(
    body: Callable[P, T], hosts: Sequence[int], *args: P.args, **_: P.kwargs
) -> list[T]:
    """Run it on ranks that pass for those of several hosts, each with so many ranks."""
    return _run(body, args, list_hosts(hosts), "gloo", 150)


def list_hosts(hosts: Sequence[int]) -> list[dict[str, str]]:
    """Return, for each rank, the variable that makes it pass for a rank of its host."""
    host_of = [host for host, ranks in enumerate(hosts) for _ in range(ranks)]
    return [{"TOPOPLAN_HOST": f"host{host}"} for host in host_of]


def run_on_one_gpu(body: Callable[P, T], *args: P.args, **_: P.kwargs) -> list[T]:
    """Run it as two NCCL ranks, which share a GPU as NCCL takes them for two hosts."""
    nccl = {
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
    }
    return _run(body, args, [{**nccl, "NCCL_HOSTID": f"r{rank}"} for rank in range(2)], "nccl", 240)


def list_memory() -> set[Path]:
    """Return what is in the folder of named shared memory."""
    return set(Path("/dev/shm").glob("*topoplan*"))


def run_command(
    *command: str,
    quiet_s: float = 200,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Ended:
    """Run a command to its end, `env` added to the environment; what it prints comes back as
    text.
    """
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=patience.seconds(quiet_s),
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )


def run_module(
    module: str,
    *args: str,
    quiet_s: float = 200,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
) -> Ended:
    """Run a command's module (`topoplan.cli.run`) to its end, in a process of its own; None in
    `env` takes a variable away.

    It differs from `python -m module` in that its imports are done: for what a command imports, use
    `run_command`.
    """
    return run_modules(module, args, [env or {}], quiet_s, cwd)[0]


def run_joined(
    module: str,
    *args: str,
    ranks: int,
    quiet_s: float = 200,
    hosts: Sequence[int] = (),
) -> list[Ended]:
    """Run a command's module on `ranks` ranks that find each other, as a launcher such as torchrun
    starts them. With `hosts` they pass for those of several hosts, as in `run_on_hosts`.
    """
    with tempfile.TemporaryDirectory(prefix="joined-") as folder:
        common = {
            "WORLD_SIZE": str(ranks),
            "TOPOPLAN_RENDEZVOUS": f"{folder}/rendezvous",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        places = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
        for place, host in zip(places, list_hosts(hosts), strict=False):
            place |= host
        return run_modules(module, args, places, quiet_s)


def run_modules(
    module: str,
    args: Sequence[str],
    variables: Sequence[Mapping[str, str | None]],
    quiet_s: float,
    cwd: Path | None = None,
) -> list[Ended]:
    """Run a command's module in as many processes as there are sets of environment variables, side
    by side.
    """
    with tempfile.TemporaryDirectory(prefix="commands-") as name:
        folder = Path(name)
        processes: list[BaseProcess] = []
        for number, own in enumerate(variables):
            given = {
                **os.environ,
                **patient_ranks(),
                "TOPOPLAN_CACHE": str(folder / "cache"),
                **own,
            }
            told = {name: value for name, value in given.items() if value is not None}
            call = (
                module,
                list(args),
                told,
                str(cwd or Path.cwd()),
                folder / f"{number}.out",
                folder / f"{number}.err",
            )
            processes.append(_SERVER.Process(target=_command_main, args=call))
        _run_to_end(processes, quiet_s)
        return [
            subprocess.CompletedProcess(
                [module, *args],
                process.exitcode or 0,
                _read(folder / f"{number}.out"),
                _read(folder / f"{number}.err"),
            )
            for number, process in enumerate(processes)
        ]


def run_emulated(
    network: Network, folder: Path, module: str, *args: str, quiet_s: float = 200
) -> list[subprocess.CompletedProcess[str]]:
    """Run a command's module once a rank of an emulated machine; `folder` is what the ranks share.
    Both kinds of output are in `stdout`.
    """
    write_topology(network, folder)
    outputs = [folder / f"{rank}.out" for rank in range(len(network.blueprint.home))]
    ends = time.monotonic() + patience.seconds(quiet_s)
    ranks: list[EmulatedRank] = []
    try:
        for rank, output in enumerate(outputs):
            ranks.append(EmulatedRank(network, rank, folder, module, args, output))
        codes = [rank.wait(max(0.0, ends - time.monotonic())) for rank in ranks]
    finally:
        for started in ranks:
            started.kill()
            started.wait()
    return [
        subprocess.CompletedProcess([module, *args], code, _read(output), "")
        for code, output in zip(codes, outputs, strict=True)
    ]


class EmulatedRank(ForkedProcess):
    """A command's module as one rank of an emulated machine, forked; with what tests need of
    subprocess.Popen.

    It differs from `topoplan.runtime.emulate.start_rank` in that its imports are done; `env` stands
    in for the variables that say who the rank is.
    """

    def __init__(
        self,
        network: Network,
        rank: int,
        folder: Path,
        module: str,
        arguments: Sequence[str],
        output: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        own = list_rank_variables(network, rank, folder) if env is None else env
        told = {**os.environ, **patient_ranks(), **own}
        namespace = network.namespace_of(network.blueprint.home[rank])
        call = (module, list(arguments), told, str(Path.cwd()), output, output, namespace)
        super().__init__(_SERVER.Process(target=_command_main, args=call))


def lives(pid: int) -> bool:
    """Return whether a process runs: it exists and has not ended, though nobody may have taken
    notice yet.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def patient_ranks() -> dict[str, str]:
    """Return the variables by which all processes of a test, started now, are as patient as each
    other.

    Were deadlines different, the more patient rank would be blamed.
    """
    return {patience.VARIABLE: str(patience.factor()), "PYTHONPATH": os.pathsep.join(_PATHS)}


def _run(
    body: Callable[P, T],
    args: Sequence[object],
    environments: Iterable[Mapping[str, str]],
    backend: str,
    quiet_s: float,
) -> list[T]:
    own = list(environments)
    common = {"WORLD_SIZE": str(len(own)), **patient_ranks()}
    context = _SPAWN if backend == "nccl" else _SERVER
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        common["TOPOPLAN_CACHE"] = str(folder / "cache")
        ranks: list[BaseProcess] = []
        for rank, environment in enumerate(own):
            place = {
                "TOPOPLAN_TEST_MEETING": str(folder / "meeting"),
                "TOPOPLAN_TEST_RESULT": str(folder / f"{rank}.json"),
            }
            told = {**common, **environment, **place, "RANK": str(rank)}
            call = (body.__module__, body.__name__, args, backend, told, folder / f"{rank}.out")
            ranks.append(context.Process(target=_main, args=call))
        _run_to_end(ranks, quiet_s)
        failed = [
            (process.exitcode, number) for number, process in enumerate(ranks) if process.exitcode
        ]
        # A rank that crashed says most. One that had to be killed has waited in vain for another.
        code, number = min(
            failed, key=lambda x: (x[0] == -signal.SIGKILL, x[0] > 0), default=(0, 0)
        )
        assert code == 0, f"rank {number} ended with {code}:\n{_read(folder / f'{number}.out')}"
        return [
            json.loads((folder / f"{number}.json").read_text(encoding="utf-8"))
            for number in range(len(ranks))
        ]


def _main(*call: object) -> None:
    import rank_process  # torch, which only ranks need

    rank_process.main(*call)  # type: ignore[arg-type]


def _command_main(*call: object) -> None:
    import command_process

    command_process.main(*call)  # type: ignore[arg-type]


def _read(printed: Path) -> str:
    return printed.read_text(encoding="utf-8", errors="replace") if printed.exists() else ""


def _run_to_end(processes: Sequence[BaseProcess], quiet_s: float) -> None:
    """Start processes and wait until all have ended, or time is over: those left are killed, with a
    negative exit code.
    """
    ends = time.monotonic() + patience.seconds(quiet_s)
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(0.0, ends - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.join()
