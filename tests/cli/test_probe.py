"""topo-probe as users run it: formats, files, exit codes, one-line errors, a fast start."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import patience
import pytest
from called import call_command
from launch import Ended, run_command
from planned import synthesize

from topoplan.cli.probe import main
from topoplan.synth.ir.collective import Collective
from topoplan.topo.errors import InputError
from topoplan.topo.files import write_whole
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset

COMMAND = [sys.executable, "-m", "topoplan.cli.probe"]


def run(*arguments: str, cwd: Path | None = None) -> Ended:
    return call_command("probe", *arguments, cwd=cwd)


def one_line_error(done: Ended) -> str:
    """The error of a run that failed as it should: usage exit code, nothing on standard output, one
    line.
    """
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("topo-probe: error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_without_arguments_it_shows_this_machine() -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if '"kind": "gpu"' in run("--json").stdout:
        assert "fingerprint" in lines[1]
    else:
        assert (
            len(lines) <= 3
            and "no GPUs; " in lines[0]
            and "--format tree shows what there is" in lines[-1]
        )


def test_json_is_a_topology_that_reads_back_with_its_fingerprint(tmp_path: Path) -> None:
    done = run("pcie-2socket", "--json")
    data = json.loads(done.stdout)
    wanted = preset("pcie-2socket")
    assert data["fingerprint"] == wanted.fingerprint
    back = Topology.from_json(data)
    assert (back.devices, back.links, back.fingerprint) == (
        wanted.devices,
        wanted.links,
        wanted.fingerprint,
    )
    file = tmp_path / "machine.json"
    file.write_text(done.stdout)
    assert run(str(file), "--format", "json").stdout == done.stdout


def test_local_json_reads_back() -> None:
    assert Topology.loads(run("local", "--json").stdout).by_id["cpu0"].kind == "cpu"


def test_the_table_of_a_dgx1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dgx1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("dgx1\n8 ranks, fingerprint " + preset("dgx1").fingerprint)
    assert "GPU0 X      NV2 50 NV1 25 NV1 25 NV2 50 DIS    DIS    DIS\n" in out
    assert "\x1b" not in out


def test_a_wide_matrix_stacks_its_cells_and_cuts_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["dgx2"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert out.count("NV6") == 16 * 15
    assert max(len(line) for line in out.splitlines()) <= 100


def test_many_gpus_are_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dgx-a100:3"]) == 0
    row = next(
        line.split() for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["NET"]
    )
    assert row == ["NET", "25", str(24 * 16)]


def test_notes_of_a_file_are_shown_and_markup_is_no_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.json"
    file.write_text(
        json.dumps(
            {
                "devices": [{"id": "[red]a[/red]"}, {"id": "b"}],
                "notes": ["odd [bold]thing[/bold]"],
                "links": [],
            }
        )
    )
    assert main([str(file)]) == 0
    out = capsys.readouterr().out
    assert "[red]a[/red]" in out and "note: odd [bold]thing[/bold]" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no-such-preset"], "no-such-preset"),
        (["missing.json"], "missing.json"),
        (["dgx1", "--format", "pptx"], "pptx"),
        (["dgx1", "--frobnicate"], "--frobnicate"),
        (["dgx1", "-o", "no/such/folder/out.json"], "no/such/folder"),
        (["dgx1", "-o", "."], "is a folder"),
        (["ring:8@fast"], "fast"),
        ([""], "error"),
    ],
)
def test_bad_usage_is_told_in_one_line(arguments: list[str], told: str, tmp_path: Path) -> None:
    assert told in one_line_error(run(*arguments, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_broken_file_leaves_the_output_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"devices": [{"id": ')
    (tmp_path / "out.json").write_text("kept")
    assert "bad.json" in one_line_error(
        run("bad.json", "--json", "-o", "out.json", "--force", cwd=tmp_path)
    )
    assert (tmp_path / "out.json").read_text() == "kept"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.json", "out.json"]


def test_help_begins_with_examples_and_starts_light() -> None:
    program = (
        "import sys, topoplan.cli.probe as p\n"
        "try: p.main(['--help'])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "heavy = {'torch', 'rich', 'networkx', 'numpy', 'scipy', 'pynvml', 'defusedxml'} & "
        "set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = run_command(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n\n")[1].startswith("examples:\n  topo-probe\n")


def test_probing_needs_neither_torch_nor_networkx() -> None:
    program = (
        "import sys, topoplan.cli.probe as p\n"
        "assert p.main(['local', '--json']) == 0\n"
        "heavy = {'torch', 'networkx', 'numpy', 'scipy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = run_command(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_early_is_no_error() -> None:
    with subprocess.Popen(
        [*COMMAND, "dgx-a100:16", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert patience.wait_for_ends([process]) == [0]


def test_an_existing_file_keeps_its_permissions(tmp_path: Path) -> None:
    file = tmp_path / "plan"
    file.write_text("old")
    file.chmod(0o640)
    write_whole(file, "new")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o640)


def test_a_new_file_gets_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "plan", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "plan").stat().st_mode) == 0o640


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("target", ["real", "absent"])
def test_a_link_among_cached_files_is_not_followed(target: str, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / target)
    os.mkfifo(tmp_path / "pipe")
    for name, what in (("link", "a symbolic link"), ("pipe", "no regular file")):
        with pytest.raises(InputError, match=f"{name}: is {what}, so nothing is written there"):
            write_whole(tmp_path / name, "new", follow_links=False)
    plan = synthesize(Collective("allreduce", 2), preset("ring:2"), "ring").plan
    with pytest.raises(InputError, match="is a symbolic link"):
        plan.save(tmp_path / "link", overwrite=True, follow_links=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "pipe", "real"]
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "old"


def test_cached_files_are_written_below_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    for text in ("new", "newer"):
        write_whole(tmp_path / "cache/plan", text, follow_links=False)
        assert (tmp_path / "disk/plan").read_text() == text


def test_a_failure_on_the_way_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan").write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_whole(tmp_path / "plan", "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("plan", "old")]


def test_a_missing_folder_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        write_whole(tmp_path / "no" / "plan", "text")
