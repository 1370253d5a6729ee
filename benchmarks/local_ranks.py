"""Ranks of a benchmark as processes of this machine, joined over loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_POLL_S = 0.05
# After the first rank has failed the others may say what they saw.
_LAST_WORDS_S = 2.0


def start_ranks(
    script: str,
    arguments: Sequence[str],
    ranks: int,
    folder: Path,
    variables: Mapping[str, str] | None = None,
) -> list[subprocess.Popen[bytes]]:
    """Start `script` once a rank, printing to `<rank>.out` and `<rank>.err` in `folder`."""
    from topoplan.runtime.emulate.network import die_with_parent

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        **(variables or {}),
    }
    processes = []
    for rank in range(ranks):
        out, err = folder / f"{rank}.out", folder / f"{rank}.err"
        with out.open("wb") as output, err.open("wb") as errors:
            command = [sys.executable, script, *arguments]
            own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            started = subprocess.Popen(
                command,
                env=own,
                stdout=output,
                stderr=errors,
                preexec_fn=die_with_parent,
            )
            processes.append(started)
    return processes


def wait_for_ranks(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> list[int]:
    """Wait for all ranks, or until time is over or one has failed; return their exit codes.

    Those that are left then are killed.
    """
    ends = time.monotonic() + limit_s
    while any(process.poll() is None for process in processes) and time.monotonic() < ends:
        if any(process.returncode for process in processes):
            ends = min(ends, time.monotonic() + _LAST_WORDS_S)
        time.sleep(_POLL_S)
    for process in processes:
        process.kill()
    return [process.wait() for process in processes]


def run_ranks(
    script: str,
    arguments: Sequence[str],
    ranks: int,
    limit_s: float,
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """Run ranks to their end and return what each printed; SystemExit with the errors of all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = start_ranks(script, arguments, ranks, folder, variables)
        codes = wait_for_ranks(processes, limit_s)
        if any(codes):
            texts = [path.read_text("utf-8", "replace") for path in sorted(folder.glob("*.err"))]
            shown = [f"exit codes by rank: {codes}", *(text[-1500:] for text in texts)]
            raise SystemExit("\n".join([f"{script} {' '.join(arguments)}", *shown]))
        return [(folder / f"{rank}.out").read_text("utf-8") for rank in range(ranks)]
