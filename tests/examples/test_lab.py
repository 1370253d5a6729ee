"""The lab: a small report from end to end, what datasets may be, and that every rank does its
share and no more.
"""

from __future__ import annotations

import io
import json
import re
import socket
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import run_command, run_module
from thorough import count_examples
from torch import nn

from examples.lab.command import main
from examples.lab.networks import LOOPBACK, SLOW, list_sites, parse_ranks, two_hosts
from examples.lab.page import LabReport, draw_bars
from examples.lab.results import RunResult, list_findings
from examples.lab.run_folder import Fault, RunFolder
from examples.lab.runs import Lab
from examples.lab.settings import Settings
from examples.lab.systems import parse_systems
from examples.lab.training.dataset import Dataset, load, prepare
from examples.lab.training.rank import received_bytes
from examples.lab.training.trainer import Trainer
from topoplan import InputError

ROOT = Path(__file__).resolve().parents[2]
RATE = "100Mbit"
Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def blobs(samples: int = 200, features: int = 6, classes: int = 3) -> tuple[Array, Array]:
    """Classes far apart, so that training gets all of them right."""
    random = np.random.default_rng(3)
    y = np.arange(samples) % classes
    return (random.normal(size=(samples, features)) + 8 * np.eye(classes, features)[y]).astype(
        np.float32
    ), y


@pytest.fixture(scope="module")
def npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    x, y = blobs()
    np.savez(path, x=x.reshape(-1, 2, 3), y=y + 5)
    return path


def test_help_is_printed_at_once() -> None:
    done = run_command(
        *(sys.executable, "-X", "importtime", "-m", "examples.lab", "--help"), cwd=ROOT
    )
    assert done.returncode == 0
    assert done.stdout.startswith("usage: python -m examples.lab ")
    assert not re.search(r"\| +(torch|scipy|sklearn)$", done.stderr, re.MULTILINE)


@pytest.mark.long
def test_a_report_has_every_system_its_bytes_and_its_accuracy(npz: Path, tmp_path: Path) -> None:
    report, csv, plot = (tmp_path / name for name in ("report.md", "rows.csv", "bars.svg"))
    systems = "serial,stock,plan,plan-fp16,plan-fp8,parameter-server"
    done = run_module(
        "examples.lab.command",
        *("--dataset", str(npz), "--systems", systems, "--network", "loopback", "--ranks", "2"),
        *("--epochs", "3", "--batch", "50", "--hidden", "64"),
        *("--json", "-o", str(report), "--csv", str(csv), "--plot", str(plot)),
        quiet_s=250,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["format"], found["version"]) == ("topoplan-lab", 1)
    rows = {row["system"]: row for row in found["rows"]}
    assert ",".join(rows) == systems
    assert all(
        row["accuracy_percent"] == 100 and row["serial_points"] == 0 for row in rows.values()
    )
    assert all(
        row["replicas_equal"] and row["epoch_s"] > 0 and row["reason"] is None
        for row in rows.values()
    )
    buffer = 4 * (6 * 64 + 64 + 64 * 3 + 3)  # bytes of all gradients; an epoch has three steps
    assert rows["serial"]["bytes_per_epoch"] == 0
    for system, buffers in (
        ("stock", 2),
        ("plan", 2),
        ("plan-fp16", 1),
        ("plan-fp8", 2 * 33 / 128),
        ("parameter-server", 3),
    ):
        sent = rows[system]["bytes_per_epoch"] / (3 * buffer)
        assert buffers * 0.99 < sent < buffers * 1.2 + 0.5, (system, sent)
    assert rows["plan"]["schedule"]
    text = report.read_text()
    assert all(f"| {system} |" in text for system in rows)
    assert f"python -m examples.lab --dataset blobs.npz --systems {systems}" in text
    assert csv.read_text().count("\n") == 1 + len(rows)
    assert plot.read_text().startswith("<svg ")
    for private in (str(tmp_path), str(npz.parent), str(Path.home())):
        assert private not in text
        assert private not in done.stdout
    assert not list(tmp_path.glob(".*"))


def test_where_nothing_can_be_emulated_the_report_says_why_and_goes_on(
    npz: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/none")
    assert (
        main(
            ["--dataset", str(npz), "--systems", "stock,plan", "--network", "slow", "--ranks", "2"]
        )
        == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "slow 2 stock not run" in said
    assert (
        "Not run: stock, plan on slow with 2 ranks: ip, tc, unshare, nsenter: not found; install "
        "iproute2" in said
    )


def test_a_report_that_exists_is_left_as_it_is_and_nothing_is_run(
    npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.md"
    report.write_text("mine")
    assert main(["--dataset", str(npz), "-o", str(report)]) == 2
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith("already exists and was not changed; name another file, or give --force")
    )
    assert report.read_text() == "mine"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--dataset", "nothing.npz"], "no such file (--dataset)"),
        (["--dataset", "data.txt"], "expected digits, or a file"),
        (["--systems", "plan-int9"], "did you mean 'plan-int8'?"),
        (["--systems", " , "], "no system given"),
        (["--network", "nowhere"], "unknown topology"),
        (
            ["--ranks", "1"],
            "expected numbers from 2 to 32 separated by commas, as in 2,4 (--ranks)",
        ),
        (["--slowest", "quick"], "is not a rate"),
        (["--epochs", "0"], "epochs 0: expected a whole number from 1 to 10000 (--epochs)"),
        (["--hidden", "512,x"], "expected widths"),
        (["-o", "/nowhere/report.md"], "cannot be written: there is no folder"),
        (["-o", "x.html"], "ends in .md or .json"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.strip().splitlines()) == 1


def test_npz_and_csv_of_the_same_numbers_are_the_same_dataset(npz: Path, tmp_path: Path) -> None:
    x, y = blobs()
    table = tmp_path / "blobs.csv"
    lines = [
        ",".join([*(repr(float(v)) for v in row), str(label + 5)])
        for row, label in zip(x, y, strict=True)
    ]
    table.write_text("\n".join(["a,b,c,d,e,f,label", *lines]))
    one, other = load(str(npz), 4), load(str(table), 4)
    assert one.classes == other.classes == 3
    for part in ("train_x", "train_y", "test_x", "test_y"):
        assert np.array_equal(getattr(one, part), getattr(other, part))
    assert len(one.test_y) == 50
    assert abs(float(one.train_x.mean())) < 1e-5
    assert abs(float(one.train_x.std()) - 1) < 1e-5


def with_value(value: float) -> Array:
    x: Array = blobs()[0].copy()
    x[17, 2] = value
    return x


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": blobs()[0]}, "has no array 'y' (it has x)"),
        ({"x": blobs()[0], "y": blobs()[1][:-1]}, "expected one label a sample"),
        ({"x": with_value(float("nan")), "y": blobs()[1]}, "sample 17 has a feature"),
        ({"x": with_value(float("inf")), "y": blobs()[1]}, "sample 17 has a feature"),
        ({"x": blobs()[0], "y": blobs()[1] * 0 + 7}, "all samples have the label 7"),
        ({"x": blobs()[0], "y": blobs()[1] + 0.5}, "labels are not whole numbers"),
        ({"x": blobs(2000)[0], "y": np.arange(2000)}, "2000 different labels"),
        ({"x": blobs(12)[0], "y": blobs(12)[1]}, "has 12 samples"),
        ({"x": blobs()[0][:, :0], "y": blobs()[1]}, "no features"),
        ({"x": np.array(["a"] * 200), "y": blobs()[1]}, "expected numbers"),
        ({"x": np.array([{}] * 200), "y": blobs()[1]}, "pickled Python objects"),
    ],
)
def test_what_is_wrong_with_arrays_is_said(
    arrays: dict[str, Array], says: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "data.npz", allow_pickle=True, **arrays)
    with pytest.raises(InputError) as caught:
        load(str(tmp_path / "data.npz"), 0)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ("1\n2\n3\n", "has one column"),
        ("1,2,0\n3,four,1\n", "'four'"),
        ("1,2,0\n3,1\n", "the number of columns changed"),
        ("a,b,c\nd,e,f\n", "could not convert string 'd'"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load(str(path), 0)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_array_that_claims_more_than_is_there_takes_no_memory(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 8)}
    )
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(64))
        archive.writestr("y.npy", header.getvalue())
    with pytest.raises(InputError, match="has another number of bytes"):
        load(str(tmp_path / "data.npz"), 0)


@settings(max_examples=count_examples(60))
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8),
    st.integers(0, 10**6),
)
def test_a_damaged_file_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], cut: int
) -> None:
    whole = io.BytesIO()
    x, y = blobs(40)
    np.savez(whole, x=x, y=y)
    raw = bytearray(whole.getvalue())
    for place, value in changes:
        raw[place % len(raw)] = value
    path = tmp_path_factory.mktemp("damaged") / "data.npz"
    path.write_bytes(raw[: len(raw) - cut % 40 * (cut % 2)])
    try:
        load(str(path), 0)
    except InputError as error:
        assert "\n" not in str(error)


def small(batch: int = 20) -> tuple[Dataset, Settings]:
    return prepare("blobs", *blobs(), 0), Settings(
        epochs=2, batch=batch, learning_rate=0.1, hidden=(8,), seed=5
    )


@pytest.mark.long
def test_serial_training_is_the_plain_loop_bit_for_bit() -> None:
    data, job = small()
    trainer = Trainer(data, job)
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    steps, step = 2 * 8, 0
    for epoch in range(2):
        loss = trainer.train_epoch(epoch)
        for size, batch in Trainer(data, job).batches(epoch):
            assert size == len(batch)
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / steps)
            step += 1
            optimizer.zero_grad()
            mean = nn.functional.cross_entropy(net(x[batch]), y[batch], reduction="sum") * (
                1 / size
            )
            torch.autograd.backward(mean)
            optimizer.step()
        assert loss == float(mean.detach())
    assert step == steps == trainer.steps
    assert torch.equal(
        trainer.flat(), torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    )


@pytest.mark.parametrize("batch", [7, 2])
def test_the_mean_of_unequal_shares_gradients_is_the_batchs(batch: int) -> None:
    """Also where a batch has fewer samples than there are ranks."""
    data, job = small(batch)
    gradients: list[torch.Tensor] = []
    for world in (1, 3):
        kept: list[torch.Tensor] = []
        for rank in range(world):
            trainer = Trainer(data, job, rank, world)

            def keep(trainer: Trainer = trainer, kept: list[torch.Tensor] = kept) -> None:
                kept.append(
                    torch.cat(
                        [p.grad.reshape(-1) for p in trainer.net.parameters() if p.grad is not None]
                    )
                )
                raise StopIteration

            trainer.update = keep
            with pytest.raises(StopIteration):
                trainer.train_epoch(0)
        gradients.append(torch.stack(kept).mean(0))
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(received_bytes() is None, reason="this system does not count bytes")
def test_bytes_are_counted_as_they_are_received() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0] as receiver,
    ):
        before = received_bytes()
        sender.sendall(bytes(100_000))
        left = 100_000
        while left:
            left -= len(receiver.recv(left))
        after = received_bytes()
    assert before is not None
    assert after is not None
    assert after - before == 100_000


def test_a_system_that_fails_has_a_row_with_the_reason_and_the_others_go_on(tmp_path: Path) -> None:
    data, job = small()
    lab = Lab(data, job, parse_systems("stock,plan,ring"), [], lambda what, done, total: None)
    launches = []

    def start(path: Path, ranks: int) -> int:
        run = RunFolder(path)
        systems = run.read("job")["systems"]
        launches.append(systems)
        if "ring" in systems:
            run.log(0).write_text("noise")
            run.write("fault0", Fault(system="plan", why="connection reset", known=False))
            run.write("fault1", Fault(system="ring", why="rank 1 is gone", known=True))
            return 1
        row = {
            "schedule": "",
            "seconds": [3.0, 1.0, 2.0],
            "bytes": [9, 5, 7],
            "loss": 0.1,
            "correct": 25,
        }
        run.write("results", [{**row, "system": name, "replicas_equal": True} for name in systems])
        return 0

    (site,) = list_sites([LOOPBACK], (2,), RATE)
    rows = lab.run_together(tmp_path, site, lab.systems, {}, start)
    assert launches == [["stock", "ring", "plan"], ["stock", "plan"]]
    by_name = {row.system: row for row in rows}
    assert by_name["ring"] == RunResult(LOOPBACK, 2, "ring", reason="rank 1 is gone", failed=True)
    assert (by_name["plan"].first_epoch_s, by_name["plan"].epoch_s) == (3.0, 1.5)
    assert (by_name["plan"].bytes_per_epoch, by_name["plan"].accuracy_percent) == (6, 50)
    report = LabReport(rows, job, data, {}, "python -m examples.lab")
    assert report.failed
    assert "Failed: ring on loopback with 2 ranks: rank 1 is gone" in report.findings


@contextmanager
def refused(says: str) -> Iterator[None]:
    with pytest.raises(InputError) as caught:
        yield
    assert says in str(caught.value)


def test_networks_are_what_they_are_said_to_be() -> None:
    found = list_sites([LOOPBACK, SLOW, "ring:3", "ring:3"], (2, 5), RATE)
    assert [(site.network, site.ranks) for site in found] == [
        ("loopback", 2), ("loopback", 5), ("slow", 2), ("slow", 5), ("ring:3", 3),
    ]  # fmt: skip
    assert found[2].links == "1 link of 100 Mbit/s in each direction, emulated"
    assert found[3].links == "6 links of 100 to 400 Mbit/s in each direction, emulated"
    helped = found[3].with_helpers(2)
    assert helped is not None
    assert helped.topology.ranks == ("gpu0", "gpu1", "gpu2", "gpu3", "gpu4", "helper0", "helper1")
    assert helped.ranks == 5
    assert found[4].with_helpers(2) is None
    assert len(two_hosts(4).ranks) == 4
    with refused("expected from 2 to 32"):
        list_sites(["ring:64"], (2,), RATE)
    with refused("expected numbers from 2"):
        parse_ranks("2,,4")


def test_findings_are_computed_from_the_rows() -> None:
    rows = [
        RunResult(
            "serial",
            1,
            "serial",
            epoch_s=1.0,
            accuracy_percent=97.0,
            serial_points=0.0,
            replicas_equal=True,
        ),
        RunResult("slow", 2, "stock", "", 5.0, 4.0, 0.1, 1000, 97.0, 0.0, 0.1, True),
        RunResult("slow", 2, "plan-int8", "ring", 5.0, 2.0, 0.3, 258, 96.0, -1.0, 0.1, False),
        RunResult("slow", 2, "hierarchical", reason="one box"),
    ]
    said = list_findings(rows, 200)
    assert said[0] == "slow, 2 ranks: plan-int8 takes 2 s an epoch, stock 4 s: 2.00 times as fast."
    assert "plan-int8 0.258" in said[1]
    slower = [rows[1], replace(rows[2], epoch_s=8.0)]
    assert (
        list_findings(slower, 200)[0]
        == "slow, 2 ranks: stock is the fastest, 4 s an epoch; plan-int8 is 0.50 times as fast."
    )
    assert said[2].startswith("No run is faster than serial training (1 s an epoch)")
    assert said[3].startswith(
        "Accuracy: 1 of 2 runs are within 0.5 points of serial training; farthest is plan-int8 on "
        "slow"
    )
    assert "-1.00 points. One of the 200 samples held out is 0.50 points." in said[3]
    assert said[4] == "Replicas differ in plan-int8 (slow, 2 ranks)."
    assert "30% in the worst" in said[5]
    same = [replace(row, serial_points=0.0) for row in rows[:3]]
    assert (
        "Accuracy: all runs get as many of the 200 samples held out right as serial training."
        in list_findings(same, 200)
    )
    assert said[6] == "Not run: hierarchical on slow with 2 ranks: one box"


def test_an_epoch_that_takes_twice_as_long_has_a_bar_twice_as_long() -> None:
    rows = [
        RunResult("slow", 4, "stock", "", 1.0, 0.9),
        RunResult("slow", 4, "plan <fast>", "packing", 1.0, 0.45),
        RunResult("slow", 4, "gather", reason="no helper", failed=True),
    ]
    picture = draw_bars("Lab", rows, alone=True)
    lengths = [
        float(x) for x in re.findall(r'class="f[ps]" x="190" y="[\d.]+" width="([\d.]+)"', picture)
    ]
    assert lengths[0] == 2 * lengths[1]
    assert "2.00x stock" in picture and "failed: no helper" in picture
    assert "<title>plan &lt;fast&gt;: 0.450 s, packing</title>" in picture
