"""topo-emulate --mpi: Open MPI's ranks in the namespaces of an emulated machine, and the rankfile
that topo-place prints.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import patience
import pytest
from launch import lives
from needs import has_extra
from reports import Reports, tell

from topoplan.cli.extras import emulate as command
from topoplan.cli.topoplan import main
from topoplan.runtime.extras.emulate import emulate, parse_rate
from topoplan.runtime.extras.emulate.mpi import Mpirun, enter_host, find_open_mpi, list_mpirun
from topoplan.runtime.extras.emulate.network import Network
from topoplan.topo.presets import preset

HOSTS = ("alpha", "beta")


def enter_hosts(network: Network) -> dict[str, list[str]]:
    """Return the commands that enter both hosts, by name."""
    files = map(network.namespace_of, network.blueprint.home)
    return {host: enter_host(file, host) for host, file in zip(HOSTS, files, strict=True)}


@pytest.fixture
def two_hosts(tmp_path: Path) -> Path:
    """Two hosts of two GPUs, whose names are of this world; the link between the hosts is the
    slowest.
    """
    gpus = [
        {"id": f"{host}/gpu{i}", "kind": "gpu", "host": host} for host in HOSTS for i in range(2)
    ]
    switches = [{"id": f"{host}/nic", "kind": "switch", "family": "network"} for host in HOSTS]
    links = [{"src": gpu["id"], "dst": f"{gpu['host']}/nic", "bandwidth_GBps": 4} for gpu in gpus]
    links.append({"src": "alpha/nic", "dst": "beta/nic", "bandwidth_GBps": 1})
    machine = {
        "format": "topoplan-topology",
        "version": 1,
        "name": "two-hosts",
        "devices": [*gpus, *switches],
        "links": [{**link, "bidirectional": True} for link in links],
    }
    path = tmp_path / "two-hosts.json"
    path.write_text(json.dumps(machine), encoding="utf-8")
    return path


@pytest.mark.network("MPI between namespaces", "mpi4py")
def test_open_mpi_s_ranks_meet_over_emulated_links(
    two_hosts: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each has its host and the variables of its rank, MPI has the user's settings, and messages
    cross the slow link.
    """
    monkeypatch.setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1")
    monkeypatch.setenv("OMPI_MCA_coll_tuned_allreduce_algorithm", "4")
    size_bytes, Mbit = 256 << 10, 20
    program = [
        sys.executable,
        str(Path(__file__).parents[2] / "emulated_mpi_rank.py"),
        str(size_bytes),
    ]
    args = [
        str(two_hosts),
        "--slowest",
        f"{Mbit}Mbit",
        "--order",
        "3,1,2,0",
        "--mpi",
        "--",
        *program,
    ]
    assert command.main(args) == 7  # the exit code of rank 1
    printed = capfd.readouterr()
    reports: list[dict[str, Any]] = json.loads(printed.out)
    if find_open_mpi().version < 5:  # later ones cannot be told to leave the failed rank to itself
        # Where an agent has begun before Open MPI gives it a process group, as a busy machine has
        # it, Open MPI says that too.
        said = [
            line for line in printed.err.splitlines() if "plm:rsh: Warning: setpgid" not in line
        ]
        assert len(said) == 1, printed.err
    assert [report["rank"] for report in reports] == [0, 1, 2, 3]
    for rank, report in enumerate(reports):
        told = report["variables"]
        assert report["sum"] == [6, 10, 14, 18]
        assert report["algorithm"] == 4
        assert report["host"] == f"rank{rank}"
        assert report["addresses"] == [f"10.99.0.{rank + 1}"]
        assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"], told["MASTER_ADDR"]) == (
            str(rank),
            str(rank),
            "4",
            "10.99.0.1",
        )
        assert told["OMPI_COMM_WORLD_RANK"] == str(rank)
        assert told["GLOO_SOCKET_IFNAME"] == "id0"
        assert Path(told["TOPOPLAN_RENDEZVOUS"]).parent == Path(told["TOPOPLAN_EMULATED"]).parent
        assert not Path(told["TOPOPLAN_EMULATED"]).parent.exists()  # by now
    # What a burst lets through at once is less than half of it; memory would be a thousand times as
    # fast.
    assert 2 * size_bytes * 8 / reports[0]["seconds"] < 2 * Mbit * 10**6


@pytest.mark.skipif(not has_extra("place"), reason="no files of topo-place")
@pytest.mark.network("MPI between namespaces")
def test_open_mpi_places_ranks_by_the_printed_files(
    two_hosts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the line in a rankfile every rank is on its host and core, going back and forth between
    hosts; by that in a hostfile hosts are filled in turn.
    """
    enough = len(os.sched_getaffinity(0)) > 1
    if not enough:
        monkeypatch.setenv("HWLOC_SYNTHETIC", "node:1 core:2 pu:1")
    ranks, hosts = tmp_path / "order.ranks", tmp_path / "order.hosts"
    for dimension, file, form in (("dp", ranks, "rankfile"), ("tp", hosts, "hostfile")):
        job = ("--job", "dp=2,tp=2", "--traffic", f"{dimension}=allreduce:1G")
        assert main(["place", str(two_hosts), *job, "--format", form, "-o", str(file)]) == 0
    promised = dict(re.findall(r"^rank (\d+)=(\w+ slot=\d+)$", ranks.read_text(), re.MULTILINE))
    assert [where.split()[0] for where in promised.values()] in (
        ["alpha", "beta"] * 2,
        ["beta", "alpha"] * 2,
    )
    in_turn = re.findall(r"^(\w+) slots=2$", hosts.read_text(), re.MULTILINE)
    assert sorted(in_turn) == list(HOSTS)

    mpi, log = find_open_mpi(), tmp_path / "log"
    seen = (
        "$(uname -n) slot=$OMPI_COMM_WORLD_LOCAL_RANK $(ip -br addr show id0) $(grep "
        "Cpus_allowed: /proc/self/status)"
    )
    with emulate(preset("path:2"), parse_rate("100Mbit")) as network:
        entered = enter_hosts(network)
        for file in (ranks, hosts):
            told = re.findall(
                rf"^# (?:Open MPI {mpi.version}: )?mpirun (.*) COMMAND$",
                file.read_text(),
                re.MULTILINE,
            )
            arguments = [
                *shlex.split(told[0]),
                "sh",
                "-c",
                f'echo "{file.suffix} $OMPI_COMM_WORLD_RANK {seen}" >> {log}',
            ]
            started = Mpirun(list_mpirun(mpi, tmp_path, entered, *arguments))
            assert patience.wait_for_ends([started]) == [0]
    row = r"^\.(\w+) (\d+) (\w+) (slot=\d+) .*10\.99\.0\.(\d)/32.*Cpus_allowed:\s+([\w,]+)$"
    ran = re.findall(row, log.read_text(), re.MULTILINE)
    assert all(HOSTS[int(address) - 1] == host for _, _, host, _, address, _ in ran)
    assert {
        rank: f"{host} {slot}" for file, rank, host, slot, _, _ in ran if file == "ranks"
    } == promised
    filled = {int(rank): host for file, rank, host, *_ in ran if file == "hosts"}
    assert [filled[rank] for rank in range(4)] == [host for host in in_turn for _ in range(2)]
    if enough:  # the kernel's word on the cores
        cores = {
            (slot, int(cpus.replace(",", ""), 16))
            for file, *_, slot, _, cpus in ran
            if file == "ranks"
        }
        (_, first), (_, second) = sorted(cores)
        assert 0 < first < second and not first & second


@pytest.mark.network("MPI between namespaces")
def test_nothing_stays_of_open_mpi_after_sigkill(tmp_path: Path) -> None:
    """Ranks, mpirun, Open MPI's daemon and the folder that they share go."""
    started = tmp_path / "started"
    body = f'echo "$$ $PPID $TOPOPLAN_RENDEZVOUS" > {started}; exec sleep 100000'
    line = [
        sys.executable,
        "-m",
        "topoplan.cli.extras.emulate",
        "path:2",
        "--mpi",
        "--",
        "sh",
        "-c",
        body,
    ]
    with Reports(started) as reports:
        running = subprocess.Popen(line, stderr=subprocess.DEVNULL)
        rows = [row.split() for row in reports.read(2, "two ranks", [running])]
    processes = [int(pid) for row in rows for pid in row[:2]]
    folder = Path(rows[0][2]).parent
    assert folder.exists() and all(map(lives, processes))
    running.kill()
    running.wait()
    patience.wait_until(lambda: not folder.exists(), "the end of the folder")
    patience.wait_until(lambda: not any(map(lives, processes)), "the end of all processes")


@pytest.mark.network("MPI between namespaces")
def test_mpirun_does_not_outlive_its_ranks_behind_a_cut(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its daemon on the far host can report nothing: neither is left, nor what a rank left in the
    background.
    """
    body = 'echo $$ > "$1/rank$OMPI_COMM_WORLD_RANK.pid"; sleep 1000 & '
    body += 'echo "$! $$" > "$1/ranks"; read line < "$1/cut"'
    with (
        emulate(preset("path:2"), parse_rate("100Mbit")) as network,
        Reports(tmp_path / "ranks") as ranks,
        Reports(tmp_path / "cut") as cut,
    ):
        entered = enter_hosts(network)
        mpi = find_open_mpi()
        command = list_mpirun(
            mpi, tmp_path, entered, *mpi.list_hosts(HOSTS), "sh", "-c", body, "sh", str(tmp_path)
        )
        mpirun = Mpirun(command, tmp_path, 2, last_report_s=0.5)
        rows = ranks.read(2, "two ranks", [mpirun])
        network.cut(*network.blueprint.devices)
        for _ in rows:
            tell(cut.path)
        patience.wait_until(lambda: mpirun.poll() is not None, "the end of mpirun")
        assert mpirun.returncode == 1
        assert "all ranks have ended and mpirun has not" in capfd.readouterr().err
        mpirun.end_session()
        patience.wait_until(lambda: not _list_alive(mpirun.pid), "the end of the daemons")
        assert not any(lives(int(pid)) for row in rows for pid in row.split())


def _list_alive(session: int) -> list[str]:
    """Return the status lines of the processes of a session that have not ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            line = (process / "stat").read_text().rsplit(")", 1)[1]
            if line.split()[3] == str(session) and line.split()[0] != "Z":
                found.append(line)
    return found


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        (None, "mpirun: not found"),
        ("HYDRA build details:", "mpirun is MPICH's"),
        ("x 1", "another (x 1)"),
    ],
)
def test_without_open_mpi_it_says_what_to_install(
    printed: str | None,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("setpriv", *(() if printed is None else ("mpirun",))):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{printed}'\n", encoding="utf-8")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main(["path:2", "--mpi", "--", "true"]) == 1
    said = capsys.readouterr().err
    assert says in said and "apt-get install openmpi-bin" in said and said.count("\n") == 1
