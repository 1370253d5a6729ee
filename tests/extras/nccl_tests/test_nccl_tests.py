"""Command lines of people used to nccl-tests: understood, or answered in one line."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest
from launch import run_module

from topoplan.cli.topoplan import main


def refuse(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on standard error with which a line of topoplan is refused."""
    try:
        code: object = main(shlex.split(line))
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    assert (code, said.out, len(said.err.splitlines())) == (2, "", 1), said
    return said.err.strip()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("-i 1M", "there is no option -i: sizes grow by a factor here; write -f FACTOR"),
        ("-i1M", "there is no option -i: sizes grow by a factor here; write -f FACTOR"),
        ("--stepbytes=1M", "there is no option --stepbytes: sizes grow by a factor here"),
        ("-m 5", "there is no option -m: every iteration is timed by itself"),
        ("-z 1", "there is no option -z: every call is waited for here"),
        ("-a 1", "there is no option -a: times here are medians"),
        ("-r 1", "there is no option -r: the root is the plan's; write topo-synth --root R"),
        ("-T 10", "there is no option -T: write --timeout SECONDS"),
        ("-o sum", "-o sum: -o names a file here; write --op sum"),
        ("-c 20", "-c 20: results are checked once here; write -c 1 or nothing"),
        ("-t 0", "-t 0: expected at least 1"),
        ("-g 2 -t 2 --nproc 3", "-t 2 -g 2 and --nproc 3: 4 and 3 ranks; leave one out"),
        ("-g 4", "4 ranks: the plan is for 2 ranks; leave -g and -t out, or synthesize for 4"),
        ("-b 900G", "-b 900G -e 1M: expected a smallest size (-b) from 1 byte to the largest (-e)"),
    ],
)
def test_what_topo_run_has_not_of_nccl_tests_is_answered(
    options: str, says: str, plans: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    assert says in refuse(f"run {plans('ring:2')} {options}", capsys)


@pytest.mark.long
def test_options_of_nccl_tests_are_understood() -> None:
    pytest.importorskip("torch")
    line = "--stock -t 2 -g 1 -d half -c 0 --minbytes 1K --maxbytes=4K -f 4 --iters 1 -w 0"
    done = run_module("topoplan.cli.run", *line.split())
    assert done.returncode == 0, done.stderr
    assert done.stderr == "-c 0: results are checked, outside of the times\n"
    head, *_, wrong = done.stdout.splitlines()
    assert head == "# allreduce, 2 ranks, gloo, float16, sum"
    assert wrong == "# wrong elements: 0"
    rows = [line.split()[0] for line in done.stdout.splitlines() if line[0] == " "]
    assert rows == ["1024", "4096"]
