"""Starting the processes of a test: ranks that run a function of `ranks/`, and commands that end in
time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import ParamSpec, TypeVar

import forked_planners
import patience
import stacks

from topoplan.runtime.ranks.launch import FROZEN

P = ParamSpec("P")
T = TypeVar("T")
Ended = subprocess.CompletedProcess[str]

# Ranks and commands are forked from one server that has imported torch: importing it takes longer
# than most of what they do.
_SERVER = multiprocessing.get_context("forkserver")
_COMMANDS = [
    "examples.lab.command",
    "topoplan.cli.probe",
    "topoplan.cli.extras.report",
    "topoplan.cli.run",
    "topoplan.cli.synth",
]
_WHAT_COMMANDS_IMPORT = [
    "examples.lab.runs",
    "topoplan.runtime.measuring.bench",
    "topoplan.runtime.register",
    "topoplan.synth.planner.groups",
    "topoplan.synth.planner.planner_process",
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
_STARTING = threading.Lock()  # commands may be started by several threads
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
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
) -> Ended:
    """Run a command to its end, `env` added to the environment (None takes a variable away); what
    it prints comes back as text.
    """
    given = {**os.environ, **stacks.VARIABLES, **(env or {})}
    with tempfile.TemporaryDirectory(prefix="command-") as name:
        out, err = Path(name, "out"), Path(name, "err")
        with out.open("wb") as output, err.open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=errors,
                cwd=cwd,
                env={name: value for name, value in given.items() if value is not None},
            )
        try:
            (code,) = patience.wait_for_ends([process], shlex.join(command), quiet_s)
        finally:
            process.kill()
            process.wait()
        return Ended(command, code, read_printed(out), read_printed(err))


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
                forked_planners.VARIABLE: _serve_planners(),
                "TOPOPLAN_CACHE": str(folder / "cache"),
                **own,
            }
            told = {name: value for name, value in given.items() if value is not None}
            out, err = folder / f"{number}.out", folder / f"{number}.err"
            processes.append(fork_command(module, list(args), told, cwd or Path.cwd(), out, err))
        ends = _run_to_end(processes, quiet_s)
        ended = [
            Ended(
                [module, *args],
                code or 0,
                read_printed(folder / f"{number}.out"),
                read_printed(folder / f"{number}.err"),
            )
            for number, code in enumerate(ends.codes)
        ]
        assert not ends.stacks, f"waited in vain for the end of {ended}\n{ends.stacks}"
        return ended


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


def _serve_planners() -> str:
    """Start the process that planners are forked from, once; return its socket's path."""
    with _STARTING:
        return _start_planners()


@cache
def _start_planners() -> str:
    path = f"{_keep_folder().name}/planners"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        _SERVER.Process(target=forked_planners.serve, args=[listener], daemon=True).start()
    return path


@cache
def _keep_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that lasts as long as this process."""
    return tempfile.TemporaryDirectory(prefix="planners-", ignore_cleanup_errors=True)


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
        common[forked_planners.VARIABLE] = _serve_planners()
        ranks: list[BaseProcess] = []
        pipes = [context.Pipe(duplex=False) for _ in own]
        for rank, environment in enumerate(own):
            place = {"TOPOPLAN_TEST_MEETING": str(folder / "meeting"), "RANK": str(rank)}
            told = {**common, **environment, **place}
            call = (body.__module__, body.__name__, args, backend, told)
            output, (_, result) = folder / f"{rank}.out", pipes[rank]
            ranks.append(context.Process(target=_main, args=(*call, output, result)))
        ends = _run_to_end(ranks, quiet_s, pipes)
        failed = [
            (code, number)
            for number, code in enumerate(ends.codes)
            if code or (code == 0 and number not in ends.results)
        ]
        # A rank that crashed says most, one that ended with neither error nor result least.
        code, number = min(failed, key=lambda x: (x[0] == 0, x[0] > 0), default=(0, 0))
        how = f"{code}" if code else "0 and without a result"
        printed = read_printed(folder / f"{number}.out")
        assert not failed, f"rank {number} ended with {how}:\n{printed}\n{ends.stacks}"
        assert not ends.stacks, f"waited in vain for the end of all ranks\n{ends.stacks}"
        return [json.loads(ends.results[number]) for number in range(len(ranks))]


def _main(*call: object) -> None:
    import rank_process  # torch, which only ranks need

    rank_process.main(*call)  # type: ignore[arg-type]


def fork_command(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    out: Path,
    err: Path,
    namespace: str | None = None,
) -> BaseProcess:
    """Return a process, not started, that calls `main` of a command's module as
    `command_process.main` does.
    """
    call = (module, arguments, environment, str(folder), out, err, namespace)
    return _SERVER.Process(target=_command_main, args=call)


def _command_main(*call: object) -> None:
    import command_process

    command_process.main(*call)  # type: ignore[arg-type]


def read_printed(printed: Path) -> str:
    """Return what a process printed into a file, "" if it made none."""
    return printed.read_text(encoding="utf-8", errors="replace") if printed.exists() else ""


@dataclass(frozen=True)
class _Ends:
    """How processes ended: exit codes (None: not in time), what came through their pipes, by
    number, and the stacks of those that had not ended.
    """

    codes: list[int | None]
    results: dict[int, bytes]
    stacks: str


def _run_to_end(
    processes: Sequence[BaseProcess],
    quiet_s: float,
    pipes: Sequence[tuple[Connection, Connection]] = (),
) -> _Ends:
    """Start processes and wait until all have ended, or time is over: those left are killed.

    Each process has the second end of its pipe, through which one message may come.
    """
    left = patience.count_down(quiet_s)
    results: dict[int, bytes] = {}
    try:
        for process in processes:
            process.start()
        for _, of_process in pipes:
            of_process.close()
        running = {process.sentinel for process in processes}
        unread = {own: number for number, (own, _) in enumerate(pipes)}
        while running and (ready := wait([*running, *unread], left())):
            for one in ready:
                if isinstance(one, Connection):
                    number = unread.pop(one)
                    with suppress(EOFError):  # the process ended without
                        results[number] = one.recv_bytes()
                else:
                    running.discard(one)
        codes = [process.exitcode for process in processes]
        late = [p.pid for p, code in zip(processes, codes, strict=True) if code is None and p.pid]
        return _Ends(codes, results, stacks.end_with_stacks(late) if late else "")
    finally:
        for process in processes:
            process.kill()
            process.join()
        for own, _ in pipes:
            own.close()
