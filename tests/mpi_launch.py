"""Starting ranks of a test by mpirun, where there is one."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch import Ended, patient_ranks, run_command

_OWN = Path(__file__).parent
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpirun(
    ranks: int,
    *command: str,
    env: Mapping[str, str] | None = None,
    quiet_s: float = 120,
    options: Sequence[str] = (),
) -> Ended:
    """Run a command as MPI ranks on this host, more than it has cores; both kinds of output as
    text.
    """
    own = {"RANK": None, "WORLD_SIZE": None, "OMP_NUM_THREADS": "1"}
    return run_command(
        *("mpirun", "--oversubscribe", "-n", str(ranks), *options, *command),
        quiet_s=quiet_s,
        env={**own, **patient_ranks(), **AS_ROOT, **(env or {})},
    )


def run_mpi_ranks(ranks: int, calls: Sequence[tuple[Any, ...]], **env: str) -> list[list[Any]]:
    """Run functions of `ranks/`, each with its arguments, one after the other on ranks that mpirun
    starts; return what each rank's functions return, by rank. AssertionError with what was printed
    where one fails.
    """
    with tempfile.TemporaryDirectory(prefix="mpi-") as name:
        folder = Path(name)
        done = _run(folder, ranks, calls, env)
        assert done.returncode == 0, (
            f"mpirun ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
        return [
            json.loads((folder / f"{rank}.json").read_text(encoding="utf-8"))
            for rank in range(ranks)
        ]


def run_mpi_ranks_to_their_end(ranks: int, *call: Any) -> Ended:
    """Run a function of `ranks/` with its arguments on ranks that mpirun starts; return how mpirun
    ended.
    """
    with tempfile.TemporaryDirectory(prefix="mpi-") as name:
        return _run(Path(name), ranks, [call], {})


def _run(
    folder: Path, ranks: int, calls: Sequence[tuple[Any, ...]], env: Mapping[str, str]
) -> Ended:
    listed = [(body.__module__, body.__name__, arguments) for body, *arguments in calls]
    (folder / "calls.json").write_text(json.dumps(listed), encoding="utf-8")
    told = {"TOPOPLAN_TRANSPORT": "mpi", "TOPOPLAN_CACHE": str(folder / "cache"), **env}
    told["TOPOPLAN_TEST_MEETING"] = str(folder / "meeting")
    return mpirun(
        ranks, sys.executable, str(_OWN / "mpi_ranks.py"), str(folder / "calls.json"), env=told
    )
