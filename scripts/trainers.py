"""Runs other people's trainers on gloo and through topoplan, on this host's CPUs, and prints
whether the same comes out.

    python scripts/trainers.py                  what is installed, one after the other
    python scripts/trainers.py --install        with pip, what examples/trainers/requirements.txt
                                                names, first
    python scripts/trainers.py lightning torch  only these
    python scripts/trainers.py --json           what came out as JSON

Each script in examples/trainers is run as it stands, through topoplan, and as it would be written
for gloo: a comment `# gloo:` says how the line after it reads then. Every collective of a
floating-point tensor is made to go through a plan: on one host the stock collective would mostly
win the race. A framework that is not installed, or does not run on gloo, is said and left out. Exit
code 1 where results differ, or a trainer fails that runs on gloo.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "trainers"
# How far losses and parameters may be from gloo's, beside the largest parameter: another order of
# additions in float32 rounds otherwise, and a few dozen steps of training carry that on. Two ranks
# have one order, and so the same bits.
TOLERANCE = 1e-5
_MARK = "# gloo: "
_NO_LINE = "no such line"
_ROW = "{:<16}{:<13}{:<22}{:>6}{:>7}  {:<24}{}"


@dataclass(frozen=True)
class Trainer:
    """A script of examples/trainers; `package` is what pip calls its framework."""

    package: str
    what: str
    script: str
    args: tuple[str, ...] = ()
    by_torchrun: bool = True
    ranks: int = 4


TRAINERS = (
    Trainer("lightning", "backend", "train_lightning.py", by_torchrun=False),
    Trainer("lightning", "hook", "train_lightning_hook.py", by_torchrun=False),
    Trainer("accelerate", "backend", "train_accelerate.py"),
    Trainer("accelerate", "hook", "train_accelerate_hook.py"),
    Trainer("transformers", "backend", "train_transformers.py"),
    Trainer("deepspeed", "backend, ZeRO 1", "train_deepspeed.py", ("--stage", "1")),
    Trainer("deepspeed", "backend, ZeRO 2", "train_deepspeed.py", ("--stage", "2")),
    Trainer("deepspeed", "backend, ZeRO 3", "train_deepspeed.py", ("--stage", "3")),
    Trainer("ray", "backend", "train_ray.py", by_torchrun=False, ranks=2),
    Trainer("pytorch-ignite", "backend", "train_ignite.py"),
    Trainer("torch", "backend, FSDP2 and TP", "train_fsdp_tp.py"),
)


@dataclass(frozen=True)
class Outcome:
    """What came of a trainer: its table row. `equal` is None where it could not be run on gloo
    either.
    """

    package: str
    version: str | None
    what: str
    ranks: int
    lines: int
    equal: bool | None
    result: str
    planned: tuple[str, ...] = ()


class TrainerError(Exception):
    """A script that fails, with the last that it printed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trainers, print the table, and return the exit code."""
    names = list(dict.fromkeys(trainer.package for trainer in TRAINERS))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "packages", nargs="*", metavar="PACKAGE", help=f"only these of {', '.join(names)}"
    )
    parser.add_argument(
        "--install", action="store_true", help="install the frameworks with pip first"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds a run may take (default 600)",
    )
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    args = parser.parse_args(argv)
    if not set(args.packages) <= set(names):
        parser.error(
            f"{', '.join(sorted(set(args.packages) - set(names)))}: expected some of "
            f"{', '.join(names)}"
        )
    wanted = args.packages or names
    if args.install:
        _install(wanted)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="trainers-", ignore_cleanup_errors=True) as folder:
        runner = Runner(Path(folder), args.timeout)
        for trainer in TRAINERS:
            if trainer.package in wanted:
                print(f"{trainer.package}, {trainer.what} ...", file=sys.stderr, flush=True)
                outcomes.append(runner.compare(trainer))
    _print_table(outcomes, as_json=args.json)
    return 1 if any(outcome.equal is False for outcome in outcomes) else 0


def _print_table(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
        return
    print(
        _ROW.format(
            "framework",
            "version",
            "what",
            "ranks",
            "lines",
            "result, beside gloo's",
            "through plans",
        )
    )
    for x in outcomes:
        lines = str(x.lines) if x.equal is not None else ""
        print(
            _ROW.format(
                x.package, x.version or "-", x.what, x.ranks, lines, x.result, "; ".join(x.planned)
            ).rstrip()
        )


def _install(packages: Sequence[str]) -> None:
    """Install frameworks, each by itself, so that one that cannot be does not keep others away;
    torch stays as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "constraints.txt")
        kept.write_text(f"torch=={version('torch')}\n", encoding="utf-8")
        for requirement in _read_requirements(packages):
            print(f"installing {requirement} ...", file=sys.stderr, flush=True)
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            ended = subprocess.run(
                [*pip, "--constraint", str(kept), requirement],
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode:
                errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
                print(
                    f"{requirement}: cannot be installed: {(errors or ['pip fails'])[-1]}",
                    file=sys.stderr,
                )


def _read_requirements(packages: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the requirements file that are for some of the packages."""
    for line in (FOLDER / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(tuple(packages)):
            yield line


def write_for_gloo(script: str) -> str:
    """Return a script as it reads for stock gloo: comments that begin with `# gloo:` say what the
    line after them is then.
    """
    lines: list[str] = []
    stock = None
    for line in script.splitlines():
        code = line.lstrip()
        if code.startswith(_MARK):
            stock = line[: len(line) - len(code)] + code.removeprefix(_MARK)
        elif stock is None:
            lines.append(line)
        else:
            lines += [] if stock.endswith(_NO_LINE) else [stock]
            stock = None
    return "\n".join(lines) + "\n"


def count_changed_lines(script: str) -> int:
    """Return how many lines of code differ between a script and the same one for gloo."""
    through_plans = [line for line in script.splitlines() if not line.lstrip().startswith(_MARK)]
    differences = list(difflib.ndiff(write_for_gloo(script).splitlines(), through_plans))
    return max(sum(line.startswith(sign) for line in differences) for sign in "+-")


class Runner:
    """Runs scripts in a folder of their own, `timeout_s` at most each."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self.folder, self.timeout_s = folder, timeout_s
        self._runs = 0
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "OMP_NUM_THREADS": "1",
            "TOPOPLAN_CACHE": str(folder / "cache"),
            "TOPOPLAN_CHOOSE": "plan",
            "TOPOPLAN_LEAST_BYTES": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        if sys.platform == "linux":
            self._environment["GLOO_SOCKET_IFNAME"] = "lo"

    def compare(self, trainer: Trainer) -> Outcome:
        """Run a trainer on gloo and through topoplan, and return how its results compare."""
        script = (FOLDER / trainer.script).read_text(encoding="utf-8")
        lines = count_changed_lines(script)
        try:
            release = version(trainer.package)
        except PackageNotFoundError:
            return Outcome(
                trainer.package,
                None,
                trainer.what,
                trainer.ranks,
                lines,
                None,
                "not installed: left out",
            )
        try:
            stock = self._run(trainer, write_for_gloo(script))
        except TrainerError as error:
            print(error, file=sys.stderr)
            return Outcome(
                trainer.package,
                release,
                trainer.what,
                trainer.ranks,
                lines,
                None,
                "fails on gloo: left out",
            )
        try:
            if trainer.what == "hook":
                self._make_plan(trainer.ranks)
            ours = self._run(trainer, script)
        except TrainerError as error:
            print(error, file=sys.stderr)
            return Outcome(
                trainer.package, release, trainer.what, trainer.ranks, lines, False, "FAILS"
            )
        equal, result = compare_results(stock, ours)
        return Outcome(
            trainer.package,
            release,
            trainer.what,
            trainer.ranks,
            lines,
            equal,
            result,
            tuple(ours[0]["planned"]),
        )

    def _make_plan(self, ranks: int) -> None:
        plan = self.folder / "plan.json"
        if not plan.exists():
            synth = [sys.executable, "-m", "topoplan.cli.synth", "--collective", "allreduce"]
            self._run_command(
                [*synth, "--topology", f"full:{ranks}", "-o", str(plan)], self._environment
            )

    def _run(self, trainer: Trainer, script: str) -> list[dict]:
        """Run a script, and return what its ranks report, by rank."""
        self._runs += 1
        file, results = (
            self.folder / f"{self._runs}_{trainer.script}",
            self.folder / str(self._runs),
        )
        file.write_text(script, encoding="utf-8")
        results.mkdir()
        torchrun = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(trainer.ranks),
        ]
        command = [
            sys.executable,
            *(torchrun if trainer.by_torchrun else []),
            str(file),
            *trainer.args,
        ]
        self._run_command(command, {**self._environment, "TRAINERS_RESULT": str(results)})
        try:
            return [
                json.loads((results / f"{rank}.json").read_text(encoding="utf-8"))
                for rank in range(trainer.ranks)
            ]
        except FileNotFoundError as error:
            raise TrainerError(
                f"{trainer.script}: rank {Path(error.filename).stem} has reported nothing"
            ) from None

    def _run_command(self, command: Sequence[str], environment: dict[str, str]) -> None:
        log = self.folder / "log"
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
        if code != 0:
            ended = f"took more than {self.timeout_s:g} s" if code is None else f"ended with {code}"
            last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])
            raise TrainerError(f"{' '.join(command)}: {ended}; the last it printed:\n{last}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and what it started: politely, so that launchers end their ranks, and then at
    once.
    """
    for number, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)


def compare_results(stock: Sequence[dict], ours: Sequence[dict]) -> tuple[bool, str]:
    """Return whether losses and parameters are equal, and how that is to be said."""
    if not ours[0]["planned"]:
        return False, "NOTHING WAS PLANNED"
    if any(rank["parameters"] != ours[0]["parameters"] for rank in ours):
        return False, "RANKS DIFFER"
    if any(
        a["losses"] != b["losses"] or a["parameters"] != b["parameters"]
        for a, b in zip(stock, ours, strict=True)
    ):
        error = max(_relative_error(a, b) for a, b in zip(stock, ours, strict=True))
        return (
            error <= TOLERANCE,
            f"{'equal' if error <= TOLERANCE else 'DIFFERENT'}, {error:.0e} off",
        )
    return True, "equal, the same bits"


def _relative_error(stock: dict, ours: dict) -> float:
    """Return the largest difference of a loss or parameter, beside the largest one; infinite where
    they do not fit.
    """
    errors = []
    for a, b in (
        (stock["losses"], ours["losses"]),
        (_join(stock["parameters"]), _join(ours["parameters"])),
    ):
        if len(a) != len(b) or not all(map(math.isfinite, (*a, *b))):
            return math.inf
        errors.append(max(abs(x - y) for x, y in zip(a, b, strict=True)) / max(map(abs, a)))
    return max(errors)


def _join(parameters: dict[str, list[float]]) -> list[float]:
    return [value for name in sorted(parameters) for value in parameters[name]]


if __name__ == "__main__":
    sys.exit(main())
