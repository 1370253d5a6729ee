"""Processes that make plans for ranks, forked from one that has imported the planner: its imports
take longer than most of the plans that tests make.

`synth/planner/test_planner_process.py` starts them as the product does.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing import parent_process
from multiprocessing.connection import wait
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

# The socket of the process that planners are forked from.
VARIABLE = "TOPOPLAN_TEST_PLANNERS"
_PLANNER = "topoplan.synth.planner.planner_process"
_PIECE_BYTES = 1 << 16


def serve(listener: socket.socket) -> None:
    """Fork a planner for each process that connects, until whoever started this process ends."""
    parent = parent_process()
    assert parent is not None
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for planners
    while parent.sentinel not in (ready := wait([listener, parent.sentinel])):
        assert ready
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _plan(connection)
        connection.close()


def use_forked() -> None:
    """Let this process have its planners from the one that `VARIABLE` names, if it names one."""
    if VARIABLE in os.environ:
        from topoplan.synth.planner import planner_process

        own = {**vars(subprocess), "Popen": _start}
        patch.object(planner_process, "subprocess", SimpleNamespace(**own)).start()


def _start(command: Sequence[str], **options: Any) -> Any:
    if list(command[1:]) == ["-m", _PLANNER]:
        return _Planner(options["env"])
    return subprocess.Popen(command, **options)


class _Planner:
    """A forked planner with those methods of subprocess.Popen that are used of one."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(os.environ[VARIABLE])
        self._connection.sendall(f"{json.dumps(environment)}\n".encode())
        self._answer = bytearray()

    def __enter__(self) -> _Planner:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def communicate(self, request: bytes | None, timeout: float) -> tuple[bytes, None]:
        """Send a request, if there is one, and return the answer; TimeoutExpired without."""
        if request is not None:
            self._connection.sendall(request)
            self._connection.shutdown(socket.SHUT_WR)
        while select.select([self._connection], [], [], timeout)[0]:
            piece = self._connection.recv(_PIECE_BYTES)
            if not piece:
                self.returncode = 0 if self._answer else 1
                return bytes(self._answer), None
            self._answer += piece
        raise subprocess.TimeoutExpired(_PLANNER, timeout)

    def kill(self) -> None:
        """End the planner, which notices that nobody listens any more."""
        self._connection.close()


def _plan(connection: socket.socket) -> None:
    """Read a request, and answer it as the product's process does."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        threading.Thread(target=_end_with_asker, args=[connection], daemon=True).start()
        file = connection.makefile("rwb")
        os.environ.clear()
        os.environ.update(json.loads(file.readline()))
        sys.stdin, sys.stdout = io.TextIOWrapper(file), io.StringIO()
        runpy.run_module(_PLANNER, run_name="__main__")
        connection.sendall(sys.stdout.getvalue().encode())
        code = 0
    finally:
        os._exit(code)


def _end_with_asker(connection: socket.socket) -> None:
    """Wait until whoever asked has closed the connection, or has ended, and end this process."""
    ends = select.poll()
    ends.register(connection, 0)  # nothing but its end
    ends.poll()
    os._exit(1)
