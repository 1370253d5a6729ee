"""Completion scripts: shells read them, and they know commands, options and values."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from launch import run_command

from topoplan.cli.commands import list_commands, list_programs
from topoplan.cli.topoplan import main

TRY = """
source script.bash
try() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    local function=$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    $function "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}" 2>/dev/null
    echo "${COMPREPLY[*]}"
}
"""


def test_bash_completes_commands_options_and_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script.bash").write_text(capsys.readouterr().out)
    (tmp_path / "matrix.txt").write_text("")
    wanted: dict[tuple[str, ...], str] = {
        ("topoplan", ""): " ".join([*list_commands(), "help"]),
        ("topoplan", "sy"): "synth",
        ("topoplan", "help", "sy"): "synth",
        ("topo-synth", "allr"): "allreduce",
        ("topo-synth", "allreduce", "dgx-a"): "dgx-a100:2",
        ("topoplan", "synth", "--collective", "all"): "allreduce allgather alltoall",
        ("topo-synth", "--strategy", "re"): "recursive-doubling",
        ("topo-synth", "--without"): "--without-link --without-rank",
        ("topoplan", "probe", "dgx-b"): "dgx-b200:2 dgx-b300:2",
        ("topo-probe", "mat"): "matrix.txt",
        ("topo-run", "mat"): "matrix.txt",
        ("topo-run", "--dtype", "bf"): "bfloat16",
        **{(f"topo-{name}", "--vers"): "--version" for name in list_programs()},
    }
    lines = [TRY, *(f"try {shlex.join(words)}" for words in wanted)]
    done = run_command("bash", "--norc", "-c", "\n".join(lines), cwd=tmp_path)
    assert dict(zip(wanted, done.stdout.splitlines(), strict=True)) == wanted, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_get_a_script_that_knows_the_values(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "recursive-doubling" in script and "without-rank" in script
    names = ["topoplan", *(f"topo-{name}" for name in list_programs())]
    if shell == "zsh":  # as a file, and by eval
        assert script.startswith(f"#compdef {' '.join(names)}\n")
        for name in names:
            function = f"_shtab_{name.replace('-', '_')}"
            assert f'    {name}) {function} "$@" ;;\n' in script
            assert f"  compdef {function} {name}\n" in script and f"\n{function}() {{\n" in script
    else:
        assert all(f"complete {name} " in script for name in names)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh on this system")
def test_zsh_reads_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    (tmp_path / "_topoplan").write_text(capsys.readouterr().out)
    done = run_command("zsh", "-n", "_topoplan", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
