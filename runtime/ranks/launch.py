"""Start the ranks of a command on this machine, and end them together."""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import reduction
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

# Environment variable: the file through which ranks that this module started find each other.
RENDEZVOUS = "TOPOPLAN_RENDEZVOUS"
# Environment variable: the file with the topology of an emulated machine (topo-emulate).
EMULATED = "TOPOPLAN_EMULATED"
# Environment variable: the folder in which emulated ranks say that they are ready.
READY = "TOPOPLAN_READY"
# Environment variable: the file to which a rank's standard error goes, unless it is rank 0.
_OWN_LOG = "TOPOPLAN_OWN_LOG"
# Module that the process from which ranks are forked imports last.
FROZEN = "topoplan.runtime.ranks.frozen"
_SUFFIX = ".ready"  # ending of the empty file by which an emulated rank says that it is ready
_STEPS = ".steps"  # ending of the file of an emulated rank with a byte for each step that ended
_ERROR = ".error"  # ending of the file of an emulated rank with the error that ends it
_POLL_S = 0.02  # between looks at the processes
_GRACE_S = 5.0  # from SIGTERM to SIGKILL
# Time after the first failure for other ranks to fail by themselves and print why.
_LAST_WORDS_S = 0.5
_MEETING_S = 5.0  # for all ranks to refuse their input
# Signals that asked this process to end (see `end_on_signals`).
_SIGNALS: list[int] = []
_SERVER = multiprocessing.get_context("forkserver")
# Exit codes of requests that cannot be carried out (see topo/errors.py): these are the cause of any
# other failure.
_REFUSED = (2, 3, 4, 5)


# A process that was started.
Child: TypeAlias = "subprocess.Popen[bytes] | ForkedProcess"


def is_rank() -> bool:
    """Return whether a launcher has set RANK and WORLD_SIZE for this process.

    Launchers are `launch`, torchrun and others.
    """
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def announce_ready() -> None:
    """Tell topo-emulate, if it started this rank, that the rank is ready for calls.

    It emulates a machine, and is told by a file.
    """
    if READY in os.environ:
        with suppress(OSError):  # another program's variable: it does not wait for this
            (Path(os.environ[READY]) / f"{os.environ.get('RANK')}{_SUFFIX}").touch()


def list_ready(folder: Path) -> set[int]:
    """Return the ranks of an emulated machine that are ready, given the folder that they share."""
    return {int(path.name.removesuffix(_SUFFIX)) for path in folder.glob(f"[0-9]*{_SUFFIX}")}


def announce_step() -> None:
    """Let topo-emulate, if it started this rank, know that a step of the rank's work has ended."""
    if READY in os.environ:
        with (
            suppress(OSError),  # another program's variable: it does not wait for this
            (Path(os.environ[READY]) / f"{os.environ.get('RANK')}{_STEPS}").open("ab") as steps,
        ):
            steps.write(b".")


def count_steps(folder: Path) -> int:
    """Return the steps of the emulated rank that has ended most, given the folder they share."""
    return max((path.stat().st_size for path in folder.glob(f"[0-9]*{_STEPS}")), default=0)


def announce_error(error: str) -> None:
    """Let topo-emulate, if it started this rank, know the error that ends the rank."""
    if READY in os.environ:
        with suppress(OSError):  # another program's variable: it does not wait for this
            path = Path(os.environ[READY]) / f"{os.environ.get('RANK')}{_ERROR}"
            path.write_text(error, encoding="utf-8")


def list_errors(folder: Path) -> list[str]:
    """Return the errors that ended emulated ranks, by rank, given the folder that they share."""
    paths = sorted(folder.glob(f"[0-9]*{_ERROR}"), key=lambda path: int(path.stem))
    return [path.read_text(encoding="utf-8") for path in paths]


def init_method() -> str:
    """Return the init_method with which init_process_group finds the other ranks."""
    path = os.environ.get(RENDEZVOUS)
    return f"file://{path}" if path else "env://"


def has_own_log() -> bool:
    """Return whether standard error goes to a file that is shown if this rank is to blame."""
    return _OWN_LOG in os.environ


def barrier_before_exit(ranks: int) -> None:
    """Wait a few seconds until all `ranks` ranks have refused their input and called this.

    Bad input is bad on all ranks: if each left as soon as it noticed, those still connecting or
    communicating would report a lost connection instead.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    store = PrefixStore("topoplan/leaving", dist.distributed_c10d._get_default_store())
    deadline = time.monotonic() + _MEETING_S
    with suppress(RuntimeError):  # the store is gone, with the rank that hosted it
        leaving = store.add("ranks", 1)
        while leaving < ranks and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            leaving = store.add("ranks", 0)


@contextmanager
def keep_output_clean() -> Iterator[None]:
    """Redirect libraries' standard output to standard error while the context lasts.

    Standard output is data, and gloo prints there how many ranks it is connected to, up to torch
    2.10.
    """
    try:
        kept = os.dup(1)
    except OSError:  # closed by the shell: there is no output to protect
        yield
        return
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        with suppress(OSError):  # standard error is closed
            os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def launch(module: str, arguments: Sequence[str], ranks: int, imports: Sequence[str] = ()) -> int:
    """Run `module.main(arguments)` in `ranks` processes; return 0 or the exit code of the culprit.

    They are forked from one process that has imported the module and `imports`: with more ranks
    than cores, importing torch takes longer than a rank's own work. Rank 0 prints where this
    process prints; standard error of others is shown if they are to blame. If one fails, or on any
    exception, all are ended. OMP_NUM_THREADS is set to 1, here too, if it is not set.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
    _SERVER.set_forkserver_preload([module, *imports, FROZEN])
    with tempfile.TemporaryDirectory(prefix="topoplan-") as folder, end_on_signals():
        logs = [Path(folder) / f"rank{rank}.err" for rank in range(ranks)]
        rendezvous = Path(folder) / "rendezvous"

        def start(rank: int) -> Child:
            environment = _environment(rank, ranks, rendezvous, logs[rank])
            output = None if rank else (_Descriptor(1), _Descriptor(2))
            with _without_main_module():
                return ForkedProcess(
                    _SERVER.Process(
                        target=_be_rank, args=(module, list(arguments), environment, output)
                    )
                )

        failed, code = run_together(start, ranks)
        if failed is None:
            return 0
        if failed:
            sys.stderr.write(logs[failed].read_text(encoding="utf-8", errors="replace"))
        if code < 0:
            print(f"rank {failed} was ended by signal {-code}", file=sys.stderr)
            return 1
        return code


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Keep multiprocessing from running this process's main module again in what it starts.

    A rank does not need it, and with `python -m` runpy warns that it is imported already.
    """
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def end_on_signals() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP while the context lasts.

    So child processes are ended, too.
    """

    def end(number: int, frame: object) -> None:
        _SIGNALS.append(number)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _SIGNALS.clear()


def run_together(start: Callable[[int], Child], ranks: int) -> tuple[int | None, int]:
    """Start all ranks with `start(rank)`, for rank 0 to `ranks` - 1, and wait for their end.

    Return (None, 0), or the rank at fault and its return code. That is a rank that refused the
    request, else the first that was seen to fail. If one fails, or on any exception, all are ended.
    """
    children: list[Child] = []
    try:
        for rank in range(ranks):
            children.append(start(rank))
        first = _wait_for_failure(children)
    finally:
        codes = _collect_codes(children)
        _end_all(children)
    if first is None:
        return None, 0
    # Rank 0 comes first: its message has been printed already, and the others' say the same.
    culprit = next((rank for rank, code in enumerate(codes) if code in _REFUSED), first)
    return culprit, codes[culprit] or 0


def _collect_codes(children: list[Child]) -> list[int | None]:
    """Wait _LAST_WORDS_S for ranks to end; return their codes, None for those still running."""
    deadline = time.monotonic() + _LAST_WORDS_S
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return [child.poll() for child in children]


def _environment(rank: int, ranks: int, rendezvous: Path, log: Path) -> dict[str, str]:
    return {
        "GLOO_SOCKET_IFNAME": "lo",
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        RENDEZVOUS: str(rendezvous),
        **({_OWN_LOG: str(log)} if rank else {}),
    }


class _Descriptor:
    """An open file of this process that a started process gets too."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.number)

    def __setstate__(self, copied: Any) -> None:
        self.number = copied.detach()


class ForkedProcess:
    """A forked process with those methods of subprocess.Popen that `run_together` uses.

    Making this object starts `process`.
    """

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        process.start()
        self.pid = process.pid or 0
        self.terminate, self.kill = process.terminate, process.kill

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait at most `timeout` seconds (None: without limit) and return the exit code.

        Raise subprocess.TimeoutExpired if it still runs.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("rank", timeout or 0)
        return self._process.exitcode


def _be_rank(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    output: tuple[_Descriptor, _Descriptor] | None,
) -> NoReturn:
    """Become a rank in a forked process, and exit with the result of the module's `main`."""
    # A terminal sends Ctrl-C to all processes: the one that started the ranks ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)
    with Path(os.devnull).open("r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        if output is None:
            with Path(environment[_OWN_LOG]).open("wb") as log:
                os.dup2(nothing.fileno(), 1)
                os.dup2(log.fileno(), 2)
        else:
            for number, descriptor in enumerate(output, start=1):
                os.dup2(descriptor.number, number)
    sys.exit(importlib.import_module(module).main(arguments))


def _wait_for_failure(children: list[Child]) -> int | None:
    """Return the first rank seen to fail, or None when all are done."""
    while True:
        # A signal may arrive in a callback whose exceptions are lost, such as around a fork.
        if _SIGNALS:
            raise SystemExit(128 + _SIGNALS[0])
        codes = [child.poll() for child in children]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed or None not in codes:
            return failed[0] if failed else None
        time.sleep(_POLL_S)


def _end_all(children: list[Child]) -> None:
    """Terminate, then kill, processes that still run; whole sessions if a rank leads one."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.terminate()
    deadline = time.monotonic() + _GRACE_S
    for child in running:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    for child in children:
        # Not a session's leader, or nothing is left of the session.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
