"""The helps of all commands: examples that run as printed, lines that fit 80 columns, and what
every command understands.
"""

from __future__ import annotations

import os
import pickle
import re
import shlex
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
from launch import run_command
from needs import has_extra, long_cases, why_unmet
from shown_commands import (
    NAMES,
    build_parser,
    list_examples,
    make_folder,
    print_help,
    run_as_printed,
    run_here,
)

import topoplan
from topoplan.cli.commands import list_programs
from topoplan.cli.shared.common import name_option
from topoplan.cli.synth import main as synth
from topoplan.cli.topoplan import main
from topoplan.extras import EXPORTS, EXTRAS, FILES, JOBS, MODES, SUBCOMMANDS, Names
from topoplan.topo.errors import InputError

# Environment variable: run examples as they are printed, which takes some minutes (`make shown`).
ALL = "TOPOPLAN_RUN_SHOWN"


@pytest.mark.parametrize("name", long_cases(NAMES, "synth", "report", "judge", "run", "place"))
def test_the_examples_of_every_help_run_in_their_order(name: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "examples")
    lines = list_examples(name)
    assert lines
    for line in lines:
        if os.environ.get(ALL):
            if line.startswith("topo-emulate") and why_unmet(
                "MPI between namespaces" if "--mpi" in line else "namespaces"
            ):
                continue
            done = run_as_printed(line, folder)
        elif line.startswith("eval "):
            continue  # a shell's own test is below
        else:
            done = run_here(line, folder)
        # 4: exact searches that are stopped here after a moment may not have found anything yet
        allowed = (
            (0, 4) if re.search("--instance|--pareto", line) and not os.environ.get(ALL) else (0,)
        )
        assert done.code in allowed, (line, done.stderr, done.stdout[-500:])


@pytest.mark.parametrize("name", NAMES)
def test_helps_fit_the_terminal_and_cut_no_word(name: str) -> None:
    text = print_help(name, 80)
    assert max(map(len, text.splitlines())) <= 80
    whole = set(re.findall(r"[\w-]+", print_help(name, 400)))
    assert set(re.findall(r"[\w-]+", text)) <= whole
    assert text.index("examples:") < 400


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_the_common_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = build_parser(name)._option_string_actions
    assert {"-h", "--help", "--version", "-v", "--verbose", "-q", "--quiet"} <= set(options)
    if name not in ("topoplan", "completion", "emulate", "extras", "worth"):
        assert "--force" in options and {"-o"} <= set(options)
    with pytest.raises(SystemExit) as ended:
        build_parser(name).parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"topoplan {topoplan.__version__}\n"


def test_every_option_that_names_a_file_to_be_written_refuses_one_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path / "examples")
    monkeypatch.chdir(folder)
    assert (
        run_here("topo-synth --collective allreduce --topology ring:2 -o plan.json", folder).code
        == 0
    )
    asked = {
        "probe": ["dgx1"],
        "synth": ["--collective", "allreduce", "--topology", "ring:2"],
        "run": ["plan.json"],
        "judge": ["--topology", "dgx-a100", "nccl.log"],
        "place": ["dgx1"],
        "report": ["dgx1"],
    }
    taken = folder / "taken"
    taken.write_text("mine")
    tried = 0
    for name, arguments in asked.items():
        if name not in NAMES:
            continue
        for option in ("-o", "--csv", "--trace", "--plot"):
            if option not in build_parser(name)._option_string_actions:
                continue
            if name == "run" and option in ("-o", "--trace"):  # for what extras add
                continue
            if option == "--trace" and not has_extra("traces"):
                continue
            assert main([name, *arguments, option, "taken"]) == 2
            said = capsys.readouterr().err
            assert (
                "taken: already exists and was not changed; name another file, or give --force"
                in said
            )
            assert len(said.splitlines()) == 1 and said.startswith(f"topoplan {name}: error: ")
            tried += 1
    assert tried >= 7 and taken.read_text() == "mine"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("sinth", "'sinth' is unknown (did you mean 'synth'?)"),
        (
            "synth --colective allreduce --topology dgx1",
            "there is no option --colective (did you mean '--collective'?)",
        ),
        (
            "synth --collective alreduce --topology ring:2",
            "unknown collective 'alreduce' (did you mean 'allreduce'?)",
        ),
        (
            "synth --collective allreduce --topology ring:2 --strategy pakcing",
            "(did you mean 'packing'?)",
        ),
        ("synth --collective allreduce --topology dgxx1", "(did you mean 'dgx1'?)"),
        ("synth --collective allreduce --topology ring:2 --format plam", "(did you mean 'plan'?)"),
        ("run --stock --nproc 2 --dtype flaot16", "(did you mean 'float16'?)"),
        ("run --stock --nproc 2 --op summ", "(did you mean 'sum'?)"),
        ("help sinth", "'sinth' is unknown (did you mean 'synth'?)"),
        ("topo-probe dgx1", "(did you mean 'probe'?)"),
    ],
)
def test_what_is_mistyped_is_named_with_what_is_near(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(shlex.split(line))
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert (code, len(said.splitlines())) == (2, 1)
    assert says in said and said.startswith("topoplan")


@pytest.mark.parametrize(
    "name", ["all_reduce", "all-reduce", "AllReduce", "all_reduce_perf", "allreduce"]
)
def test_collectives_are_understood_as_others_spell_them(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["synth", "--collective", name, "--topology", "ring:2", "--bound-only"]) == 0
    assert capsys.readouterr().out.startswith("allreduce on ring:2, 2 ranks: at most ")


def test_names_of_strategies_types_and_reductions_are_those_that_there_are() -> None:
    torch = pytest.importorskip("torch")
    from topoplan.runtime.measuring.bench_data import DTYPES, OPS
    from topoplan.runtime.measuring.bench_options import DTYPE_NAMES, OP_NAMES, spell_dtype
    from topoplan.synth.strategies.built_in import STRATEGIES
    from topoplan.synth.strategy_names import STRATEGY_NAMES

    assert set(STRATEGY_NAMES) == set(STRATEGIES)
    assert (set(DTYPE_NAMES), set(OP_NAMES)) == (set(DTYPES), set(OPS))
    for name in ("half", "float", "double", "long", "int"):  # as torch has them
        assert (
            DTYPES[spell_dtype(name)]
            == getattr(torch, name)
            == DTYPES[spell_dtype(f"torch.{name}")]
        )


def test_quiet_is_quiet_and_verbose_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [
        "synth",
        "--collective",
        "allreduce",
        "--topology",
        "ring:4",
        "--time-limit",
        "0.3",
        "-o",
    ]
    assert (
        main([*asked, "a.json"])
        == main([*asked, "b.json", "-q"])
        == main(["-v", *asked, "c.json"])
        == 0
    )
    usual, loud = "plan written to a.json\n", capsys.readouterr().err.splitlines()
    assert usual.strip() == loud[0] and loud[-1] == "plan written to c.json"
    assert len(loud) > 2 and all(
        re.fullmatch(r"topoplan synth: \d+ s, at most \d+ s left: .+", x) for x in loud[1:-1]
    )
    with pytest.raises(SystemExit):
        main([*asked, "d.json", "-q", "-v"])


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        (["topoplan", "--help"], "usage: topoplan COMMAND ...\n\nexamples:\n  topoplan probe\n"),
        (["topo-synth", "--help"], "usage: topo-synth COLLECTIVE TOPOLOGY "),
    ],
)
def test_the_helps_start_light_and_soon(arguments: list[str], begins: str) -> None:
    name = arguments[0].removeprefix("topo-")
    code = (
        f"import sys; sys.argv = {arguments!r}\nfrom topoplan.cli import entry\n"
        f"try: entry.{name}()\nexcept SystemExit: pass\n"
        "slow = {'torch', 'rich', 'numpy', 'scipy', 'shtab', 'networkx', 'urllib.request'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = run_command(sys.executable, "-c", code)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]"
    assert done.stdout.startswith(begins)


def test_the_help_of_synth_begins_with_eleven_options_and_has_extras_by_name() -> None:
    text = print_help("synth")
    first, _, rest = text.partition("\n\nmore options:\n")
    assert len(re.findall(r"^  -", first.partition("\noptions:\n")[2], re.MULTILINE)) == 11
    assert len(first.splitlines()) <= 60
    for extra in EXTRAS:
        options = [*extra.adds.get(MODES, ()), *extra.adds.get(JOBS, ())]
        section = rest.partition(f"\n\n{extra.name}:\n")[2].partition("\n\n")[0]
        for option in options if extra.is_here else ():
            assert f"  --{option} " in section
        for name in (*extra.adds.get(EXPORTS, ()), *extra.adds.get(FILES, ())):
            assert (f"  --format {name}" in section) == extra.is_here


@pytest.mark.parametrize("ask", ["synth --help core", "help synth core", "synth -h core"])
def test_one_screen_of_help_has_the_options_of_the_core_alone(
    ask: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(ask))
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert (ended.value.code, said.err) == (0, "") and len(lines) <= 50
    assert max(map(len, lines)) <= 80 and lines[0].startswith("usage: topoplan synth COLLECTIVE")
    assert len([line for line in lines if line.startswith("  topo-synth ")]) == 4
    parser = build_parser("synth")
    added = [action for group in parser._of_extras for action in group._group_actions]
    core = {
        name for name, action in parser._option_string_actions.items() if action not in added
    } - {"-h", "--help", "--version", "-v", "--verbose", "-q", "--quiet"}
    columns = "\n".join(line[:24] for line in lines[8:-1])
    assert set(re.findall(r"(?<= )--?[a-z][\w-]*(?=[ ,])", columns)) == core


def test_help_before_other_words_is_the_whole_help(capsys: pytest.CaptureFixture[str]) -> None:
    for ask in ("synth --help allreduce dgx1", "synth allreduce --help", "synth --help"):
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(ask))
        assert ended.value.code == 0 and "\nof every command:\n" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff on this system")
def test_pages_for_man_are_made_of_the_parsers_and_have_the_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("argparse_manpage")
    monkeypatch.setenv("COLUMNS", "80")
    pages = import_module("write_man").write_man(tmp_path)
    assert [page.name for page in pages] == [
        "topoplan.1",
        *(f"topo-{name}.1" for name in list_programs()),
        *(f"topoplan-{name}.1" for name in Names(SUBCOMMANDS).describe()),
    ]
    done = run_command("groff", "-man", "-Tascii", "-ww", *map(str, pages))
    text = "".join(re.sub("\x1b[^m]*m|.\b", "", done.stdout).split())
    assert (done.returncode, done.stderr) == (0, "")
    for name in NAMES:
        for line in list_examples(name):
            assert "".join(line.split()) in text, line


def test_errors_of_the_library_name_the_option_of_the_command_in_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A parameter becomes the option of that name, or its singular, if the command has it."""
    for parameter, advice in (
        ("without_links", " (--without-link)"),
        ("root", " (--root)"),
        ("overwrite", ", or give --force"),
        ("box", ""),  # which topo-synth does not have
        (None, ""),
    ):
        assert synth(["--collective", "allreduce", "--topology", "nowhere"]) == 2
        error = InputError("a: no such b; name a c", parameter=parameter)
        assert name_option(error) == f"a: no such b; name a c{advice}"
        assert pickle.loads(pickle.dumps(error)).parameter == parameter
    assert "(--" not in capsys.readouterr().err
