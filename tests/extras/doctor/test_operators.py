"""The examples for operators: their commands, run on recorded machines, and their files, parsed."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from launch import Ended, run_command
from needs import has_extra

from topoplan.cli.commands import import_command
from topoplan.cli.topoplan import main
from topoplan.topo.extras.doctor.metrics import METRICS

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "operators"
TABLE = FOLDER.parent / "all_reduce_perf.txt"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))

pytestmark = pytest.mark.skipif(
    not has_extra("judge"), reason="the examples judge tables, and the judge is not here"
)

# Stand-ins for programs of a cluster: tasks on two hosts, and nccl-tests on whichever ranks.
STAND_INS = {
    "srun": 'for node in gpu1 gpu2; do SLURMD_NODENAME=$node "$@"; done',
    "mpirun": "exec all_reduce_perf",
    "all_reduce_perf": 'exec cat "$TABLE"',
}
# What stands before the command that they run.
_SKIPS = "while case $1 in --*) true;; *) false;; esac; do shift; done\n"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ended]:
    """Return what runs a command where the stand-ins are found, with variables of its own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, body in STAND_INS.items():
        (tools / name).write_text(f"#!/bin/sh\nset -e\n{_SKIPS if name == 'srun' else ''}{body}\n")
        (tools / name).chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    given = {"PATH": path, "TABLE": str(TABLE)}

    def run(*command: str, **env: str) -> Ended:
        return run_command(*command, cwd=tmp_path, env={**given, **env}, quiet_s=300)

    return run


def job(run: Callable[..., Ended], folder: Path, **env: str) -> Ended:
    asked = {"SLURM_JOB_ID": "7", "TOPO_FOLDER": str(folder / "out"), "TOPO_MACHINE": "dgx-a100"}
    return run("bash", str(FOLDER / "health.sbatch"), **{**asked, **env})


def test_the_job_of_slurm_passes_on_good_hosts(run: Callable[..., Ended], tmp_path: Path) -> None:
    done = job(run, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nothing wrong found in " in done.stdout and "not checked" not in done.stdout
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    endings = ("all_reduce_perf.txt", "json", "sh")
    assert names == [f"{node}.{end}" for node in ("gpu1", "gpu2") for end in endings]


def test_the_job_fails_on_hosts_unlike_the_reference_and_on_slow_tables(
    run: Callable[..., Ended], tmp_path: Path
) -> None:
    slow = tmp_path / "slow.txt"
    slow.write_text(TABLE.read_text().replace("229.25", "150.00"))
    done = job(run, tmp_path, TOPO_LIKE="dgx-h100", TABLE=str(slow))
    assert done.returncode == 1
    assert "[other-gpus]" in done.stdout or "[narrower-link]" in done.stdout
    assert done.stdout.count("all_reduce_perf: 150 GB/s busbw at 1073741824 bytes") == 2


def list_cron() -> Iterator[tuple[list[str], str]]:
    """Yield the times and the command of each line that cron runs."""
    for line in (FOLDER / "topoplan.cron").read_text().splitlines():
        if line and not line.startswith("#") and not re.match(r"\w+=", line):
            *times, user, command = line.split(None, 6)
            assert user == "root" and len(times) == 5
            yield times, command


def test_the_lines_of_cron_write_metrics(run: Callable[..., Ended], tmp_path: Path) -> None:
    lines = list(list_cron())
    assert len(lines) == 2
    for times, command in lines:
        assert all(re.fullmatch(r"(\*|\d+)(/\d+)?", time) for time in times)
        assert "%" not in command  # which cron takes as the end of the line
        done = run("sh", "-c", command, COLLECTOR=str(tmp_path), MACHINE="dgx-a100")
        assert done.returncode == 0, done.stderr
    assert "topo_check_passed" in (tmp_path / "topo_check.prom").read_text()
    assert "topo_judge_share" in (tmp_path / "topo_judge.prom").read_text()


def test_the_lines_for_nhc_name_its_checks_and_run(
    run: Callable[..., Ended], tmp_path: Path
) -> None:
    lines = [x for x in (FOLDER / "nhc.conf").read_text().splitlines() if not x.startswith("#")]
    assert all(line.startswith("* || check_") for line in lines) and len(lines) == 2
    floors = "topo-judge --topology dgx-a100 --thresholds -o topo_floors.nhc"
    check = lines[0].removeprefix("* || ").replace("/var/tmp/table.txt", str(TABLE))
    done = run("bash", "-c", f"{floors} && . ./topo_floors.nhc && {check}")
    assert done.returncode == 0, done.stderr
    asked = lines[1].partition(" topoplan ")[2].split()
    assert main([*asked, "dgx1"]) == 0


def test_the_job_of_kubernetes_is_a_gate(run: Callable[..., Ended]) -> None:
    job = yaml.safe_load((FOLDER / "mpijob.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    replicas: dict[str, Any] = job["spec"]["mpiReplicaSpecs"]
    assert [*replicas] == ["Launcher", "Worker"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    (worker,) = replicas["Worker"]["template"]["spec"]["containers"]
    slots = job["spec"]["slotsPerWorker"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == slots
    env = {x["name"]: x["value"] for x in launcher["env"]}
    assert int(env["RANKS"]) == slots * replicas["Worker"]["replicas"]
    command = [*launcher["command"], *launcher["args"]]
    done = run(*command, RANKS="8", MACHINE="dgx-a100")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["passed"] is True
    assert run(*command, RANKS="8", MACHINE="dgx-h100:2").returncode != 0


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_scripts_are_such_as_shells_read(shell: str) -> None:
    assert run_command(shell, "-n", str(FOLDER / "health.sbatch")).returncode == 0
    for _, command in list_cron():
        assert run_command(shell, "-n", "-c", command).returncode == 0


# -- the dashboard


def list_queries() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return panels + [x["query"] for x in DASHBOARD["templating"]["list"] if x["type"] == "query"]


def test_every_metric_that_the_dashboard_queries_is_written() -> None:
    from topoplan.synth.extras.judge import report

    written = {*METRICS, *report.METRICS}
    queried = {name for query in list_queries() for name in re.findall(r"\btopo_\w+", query)}
    assert queried == written


def test_every_label_that_the_dashboard_uses_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    node = str(FOLDER / "node3.txt")
    assert main(["doctor", node, str(FOLDER / "node1.txt"), "-o", "check.prom"]) == 0
    judged = [str(TABLE), str(FOLDER.parent / "nccl.log"), "--topology", "dgx-a100"]
    assert import_command("judge").main([*judged, "--least", "0.1", "-o", "judge.prom"]) == 0
    labels: dict[str, set[str]] = {}
    for name in ("check.prom", "judge.prom"):
        for line in Path(name).read_text().splitlines():
            if not line.startswith("#"):
                metric, _, rest = line.partition("{")
                labels.setdefault(metric, {"instance"}).update(re.findall(r'(\w+)="', rest))
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            (metric,) = re.findall(r"\btopo_\w+", target["expr"])
            used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            for group in re.findall(r"by \(([^)]*)\)", target["expr"]):
                assert used <= {*group.split(", ")}, panel["title"]
                used |= {*group.split(", ")}
            used |= set(re.findall(r'(\w+)=~?"', target["expr"]))
            assert used <= labels[metric], panel["title"]


def test_the_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells
