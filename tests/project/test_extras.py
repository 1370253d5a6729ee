"""The table of extras: what it names is there, and what is deleted is refused in one line."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import extras as script
import topoplan
from topoplan import extras
from topoplan.cli import entry, run, synth
from topoplan.cli.commands import import_command, list_commands, list_programs
from topoplan.cli.probing.added import Review, View
from topoplan.cli.running.added import RunFile, RunMode
from topoplan.cli.synthesis.added import FileRequest, JobOptions, PlanFile
from topoplan.cli.topoplan import main as whole
from topoplan.extras import (
    ADDITIONS,
    ASIDES,
    BOUNDS,
    BOXES,
    CALL_CHECKS,
    CHECKS,
    CODECS,
    COMMANDS,
    CORRECTIONS,
    DIALECTS,
    ENCODERS,
    EXAMPLES,
    EXPLANATIONS,
    EXPORTS,
    EXTRAS,
    FIELDS,
    FILES,
    FORMATS,
    GRAPHS,
    JOB_OPTIONS,
    JOBS,
    LAUNCHES,
    LAYERS,
    LINKS,
    MODES,
    NAMES,
    NETWORKS,
    NOTEBOOKS,
    OPTIONS,
    OTHERS,
    PLAN_FILES,
    PLANNERS,
    PLANS,
    PREPARATIONS,
    PROCESS_GROUPS,
    REQUESTS,
    REVIEWS,
    RUN_CHECKS,
    RUN_FILES,
    RUN_MODES,
    RUNNERS,
    RUNS,
    SCHEMAS,
    SECTIONS,
    SELECTIONS,
    SOURCES,
    STRATEGIES,
    SUBCOMMANDS,
    TABLES,
    VIEWS,
    WAITS,
    WORDS,
    Extra,
    Names,
)
from topoplan.runtime.backend.call_check import CallCheck
from topoplan.runtime.backend.plan_files import PlanFiles
from topoplan.runtime.backend.plan_sets import PlanSetFormat
from topoplan.runtime.backend.process_group import TopoGroup
from topoplan.runtime.codec import Codec
from topoplan.runtime.ranks.links import NamedLinks
from topoplan.runtime.ranks.waits import WaitWatch
from topoplan.synth.addition import Addition
from topoplan.synth.library_format import LibraryFormat
from topoplan.synth.request import Strategy
from topoplan.synth.schedule_format import ScheduleFormat
from topoplan.synth.section import SectionKind
from topoplan.topo.errors import InputError, TopoplanError
from topoplan.topo.extras.doctor.view import Check
from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.formats.format import Aside, Format, PlaceFormats
from topoplan.topo.notebook import Renderer


def test_every_path_and_module_of_the_table_is_there() -> None:
    for extra in EXTRAS:
        assert all((script.ROOT / path).exists() for path in extra.paths), extra.name
        assert extra.is_here
    exports = Names(EXPORTS)
    assert {*exports.describe()} >= {"mscclpp", "astra-sim"}
    assert all(isinstance(exports.find(name), ScheduleFormat) for name in exports.describe())
    assert {*Names(COMMANDS).describe()} >= {"emulate"}
    assert all(import_command(name).build_parser() for name in Names(COMMANDS).describe())
    assert {*Names(SUBCOMMANDS).describe()} <= {*list_commands()} - {*list_programs()}
    links = Names(LINKS)
    assert all(issubclass(links.find(name), NamedLinks) for name in links.describe())
    names = Names(NAMES)
    assert {*names.describe()} == {*topoplan.__all__} - {*topoplan._HOMES}
    assert all(names.find(name) is getattr(topoplan, name) for name in names.describe())
    plans = Names(PLANS)
    assert all(isinstance(plans.find(form), PlanSetFormat) for form in plans.describe())
    assert [*plans.describe()] == [*Names(RUNS).describe()]
    files = Names(FILES)
    assert all(isinstance(files.find(name), LibraryFormat) for name in files.describe())
    checks = Names(CHECKS)
    assert all(isinstance(c, Check) for name in checks.describe() for c in checks.find(name))
    networks = Names(NETWORKS)
    assert all(callable(networks.find(name).join) for name in networks.describe())
    parsers = [import_command(name).build_parser() for name in (*list_commands(), "topoplan")]
    call_checks = Names(CALL_CHECKS)
    assert all(issubclass(call_checks.find(name), CallCheck) for name in call_checks.describe())
    classes = Names(PROCESS_GROUPS)
    assert all(issubclass(TopoGroup, classes.find(name)) for name in classes.describe())
    notebooks = Names(NOTEBOOKS)
    assert all(isinstance(notebooks.find(name), Renderer) for name in notebooks.describe())
    assert all(callable(Names(WORDS).find(name)) for name in Names(WORDS).describe())
    codecs = Names(CODECS)
    assert all(isinstance(codecs.find(name), Codec) for name in codecs.describe())
    sections = Names(SECTIONS)
    assert all(isinstance(sections.find(name), SectionKind) for name in sections.describe())
    additions = Names(ADDITIONS)
    assert all(isinstance(additions.find(name), Addition) for name in additions.describe())
    assert {*Names(EXAMPLES).describe()} <= {line for x in parsers for line, _ in x.examples}
    waits = Names(WAITS)
    assert all(isinstance(waits.find(name), WaitWatch) for name in waits.describe())
    dialects = Names(DIALECTS)
    assert all(callable(dialects.find(name).add_options) for name in dialects.describe())
    beside = Names(PLAN_FILES)
    assert all(isinstance(beside.find(name), PlanFile) for name in beside.describe())
    requests, bounds = Names(REQUESTS), Names(BOUNDS)
    assert all(isinstance(requests.find(name), FileRequest) for name in requests.describe())
    assert all(callable(bounds.find(name).find_demand_bounds) for name in bounds.describe())
    strategies, job_options = Names(STRATEGIES), Names(JOB_OPTIONS)
    assert all(isinstance(strategies.find(name), Strategy) for name in strategies.describe())
    assert all(isinstance(job_options.find(name), JobOptions) for name in job_options.describe())
    reviews = Names(REVIEWS)
    assert all(isinstance(reviews.find(name), Review) for name in reviews.describe())
    formats, boxes = Names(FORMATS), Names(BOXES)
    assert all(isinstance(formats.find(name), Format) for name in formats.describe())
    assert all(isinstance(boxes.find(name), PlaceFormats) for name in boxes.describe())
    asides = Names(ASIDES)
    assert all(isinstance(asides.find(name), Aside) for name in asides.describe())
    graphs = Names(GRAPHS)
    assert all(callable(graphs.find(name).read) for name in graphs.describe())
    views = Names(VIEWS)
    assert all(isinstance(views.find(name), View) for name in views.describe())
    others = Names(OTHERS)
    assert all(callable(others.find(name).await_rows) for name in others.describe())
    modes, files = Names(RUN_MODES), Names(RUN_FILES)
    assert all(isinstance(modes.find(name), RunMode) for name in modes.describe())
    assert all(isinstance(files.find(name), RunFile) for name in files.describe())
    for group in (
        *(JOBS, MODES, OPTIONS, PLANNERS, RUNS, SCHEMAS, SOURCES, EXPLANATIONS),
        *(CORRECTIONS, ENCODERS, FIELDS, LAUNCHES, PREPARATIONS, RUN_CHECKS, SELECTIONS, TABLES),
    ):
        assert all(callable(Names(group).find(name)) for name in Names(group).describe())


@pytest.mark.parametrize("extra", extras.EXTRAS, ids=lambda extra: extra.name)
def test_the_folder_of_an_extra_says_what_it_is_for(extra: extras.Extra) -> None:
    folder = Path(extras.__file__).parent / extra.paths[0]
    if folder.suffix:
        return  # its docstring says so
    title, _, what, _, *points = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    assert title == f"# {extra.name}"
    assert what.endswith(".") and [line[:5] for line in points] == ["- For", "- Ent", "- Lim"]


def test_an_extra_imports_the_core_and_what_it_needs() -> None:
    owners = {script.ROOT / path: extra for extra in EXTRAS for path in extra.paths}
    for folder, extra in owners.items():
        for file in [folder] if folder.is_file() else folder.rglob("*.py"):
            others = {
                owner.name
                for imported in _list_imports(file)
                for path, owner in owners.items()
                if imported.is_relative_to(path)
            }
            assert others <= {extra.name, *extra.needs}, file


def _list_imports(file: Path) -> Iterator[Path]:
    """Yield where what a file imports relatively is, by module and name."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            module = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            yield from (module / alias.name for alias in node.names)


def test_what_is_deleted_is_refused_and_no_longer_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(EXPORTS)
    assert "mscclpp" in names and "mscclpp" in list(names)
    monkeypatch.setattr(Extra, "is_here", property(lambda extra: extra.name != "mscclpp"))
    assert "mscclpp" not in names and "mscclpp" not in list(names)
    with pytest.raises(InputError, match="the extra 'mscclpp' is not in this copy of topoplan"):
        names.find("mscclpp")
    with pytest.raises(InputError, match="nonsense: expected one of astra-sim"):
        names.find("nonsense")


def test_a_deleted_command_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Extra, "is_here", property(lambda extra: extra.name != "emulate"))
    assert "emulate" not in list_commands()
    ways: dict[str, Callable[[], int]] = {
        "topoplan emulate": lambda: whole(["emulate", "ring:2"]),
        "topo-emulate": entry.emulate,
    }
    for shown, ask in ways.items():
        assert ask() == 2
        assert capsys.readouterr().err == (
            f"{shown}: error: emulate: the extra 'emulate' is not in this copy of topoplan; "
            "install a copy that has it\n"
        )


def test_the_facade_refuses_a_name_of_what_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "reshard" in dir(topoplan)
    monkeypatch.delitem(vars(topoplan), "reshard", raising=False)  # it may have been used
    monkeypatch.setattr(Extra, "is_here", property(lambda extra: extra.name != "reshard"))
    assert "reshard" not in dir(topoplan)
    with pytest.raises(InputError, match="reshard: the extra 'reshard' is not in this copy"):
        topoplan.reshard  # noqa: B018


def test_an_option_of_the_backend_is_refused_where_it_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Extra, "is_here", property(lambda extra: extra.name != "uneven-alltoall"))
    topoplan.backend_options()
    with pytest.raises(InputError, match="expected_splits: the extra 'uneven-alltoall' is not in"):
        topoplan.backend_options(expected_splits=[[0, 1], [1, 0]])


def test_a_joint_plan_is_refused_where_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "joint.json"
    file.write_text('{"format": "topoplan-joint-plan"}')
    monkeypatch.setattr(Extra, "is_here", property(lambda extra: extra.name != "joint"))
    said = "the extra 'joint' is not in this copy of topoplan; install a copy that has it"
    for path in (file, tmp_path):
        with pytest.raises(InputError, match=f"topoplan-joint-plan: {said}"):
            PlanFiles([path])
    for main, arguments in (
        (synth.main, ["allreduce", "ring:4", "--groups", "tp=0,1|2,3"]),
        (run.main, [str(file)]),
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert said in captured.err and len(captured.err.splitlines()) == 1 and not captured.out


def test_an_extra_is_gone_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    user = Extra("user", ("synth/extras/mscclpp",), {}, needs=("mscclpp",))
    assert user.is_here
    gone = Extra("mscclpp", ("synth/extras/no-such-folder",), {})
    monkeypatch.setitem(extras.BY_NAME, "mscclpp", gone)
    assert not gone.is_here and not user.is_here


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return what installs a package with entry points, whose modules are in `tmp_path`."""

    def write(name: str, entry_points: str) -> None:
        package = tmp_path / f"{name}-1.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(tmp_path)

    return write


def test_an_installed_package_adds_a_format(
    tmp_path: Path, install: Callable[[str, str], None]
) -> None:
    """One whose module fails is one line, and stops nothing that does not use it."""
    install(
        "other", "[topoplan.exports]\nlines = other_format:FORMAT\nbroken = other_broken:FORMAT\n"
    )
    (tmp_path / "other_format.py").write_text(
        "from topoplan.synth.schedule_format import ScheduleFiles, ScheduleFormat\n"
        "FORMAT = ScheduleFormat(lambda plan, entry, size: ScheduleFiles({'': 'x'}, {}, ()))\n"
    )
    (tmp_path / "other_broken.py").write_text("import no_such_module\n")
    names = Names(EXPORTS)
    assert [*names][-2:] == ["broken", "lines"] and "lines" in names
    assert isinstance(names.find("lines"), ScheduleFormat)
    with pytest.raises(TopoplanError, match="broken: the entry point other_broken:FORMAT cannot"):
        names.find("broken")


def test_an_entry_point_of_another_type_is_one_line(
    tmp_path: Path, install: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as a function where a module is expected, or a class that lacks a method."""
    groups = {
        COMMANDS: "main",
        EXPORTS: "write",
        FILES: "write",
        LINKS: "open",
        CODECS: "list_buffers",
        RUNNERS: "prepare",
        LAYERS: "why_not",
    }
    points = (f"[topoplan.{group}]\nwrong = other_things:nothing\n" for group in groups)
    install("things", "".join(points))
    (tmp_path / "other_things.py").write_text("def nothing():\n    pass\n")
    for group, lacks in groups.items():
        says = f"wrong: the entry point other_things:nothing has no {lacks}; expected what docs/ext"
        with pytest.raises(TopoplanError, match=says):
            Names(group).find("wrong")
    assert whole(["wrong"]) == 1
    assert capsys.readouterr().err == (
        "topoplan wrong: error: wrong: the entry point other_things:nothing has no main; expected "
        "what docs/extending.md says of topoplan.commands\n"
    )


def test_an_installed_package_reads_what_nothing_here_reads(
    tmp_path: Path,
    install: Callable[[str, str], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also what is refused by name; one that cannot be loaded does not hide why a text is."""
    install(
        "readers",
        "[topoplan.formats]\nfabric = other_reader:FORMAT\nbroken = other_broken:FORMAT\n",
    )
    (tmp_path / "other_broken.py").write_text("import no_such_module\n")
    (tmp_path / "other_reader.py").write_text(
        "from topoplan import load\n"
        "from topoplan.topo.formats.format import Format\n"
        "def starts(text):\n"
        "    return text.startswith('# Topology file: generated on')\n"
        "FORMAT = Format('fabrics', starts, lambda text, where: load('ring:3'))\n"
    )
    text = "# Topology file: generated on Monday\n"
    assert read_topology_text(text, "fabric.txt").name == "ring:3"
    assert read_topology_text(f"\ufeff<!-- -->\n{text}", "fabric.txt").name == "ring:3"
    with pytest.raises(InputError, match="machine: the format is not recognized"):
        read_topology_text("nothing", "machine")
    said = "broken: the entry point other_broken:FORMAT cannot be loaded: ModuleNotFoundError"
    assert said in caplog.text and "its format is left out" in caplog.text
    monkeypatch.undo()
    with pytest.raises(InputError, match="the output of ibnetdiscover, which is not read"):
        read_topology_text(text, "fabric.txt")


def test_an_installed_packages_file_takes_the_options_that_it_names(
    tmp_path: Path, install: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    install(
        "tuning",
        "[topoplan.files]\nguarded = tuning_formats:GUARDED\nplain = tuning_formats:PLAIN\n",
    )
    (tmp_path / "tuning_formats.py").write_text(
        "from topoplan.synth.library_format import Export, LibraryFormat\n"
        "def write(wanted):\n"
        "    text = f'{wanted.version} {wanted.guard}'\n"
        "    return Export('guarded', text, {}, (), reason='no use' if wanted.guard else None)\n"
        "GUARDED = LibraryFormat(write, options=('--nccl-version', '--no-guard'))\n"
        "PLAIN = LibraryFormat(write)\n"
    )
    file, asked = tmp_path / "file", ["allreduce", "ring:4", "--format"]
    options = ["--nccl-version", "2.20.5", "--no-guard", "-o", str(file)]
    assert synth.main([*asked, "guarded", *options]) == 0
    assert file.read_text().split() == ["2.20.5", "False"]
    capsys.readouterr()
    assert synth.main([*asked, "plain", *options]) == 2
    assert "--nccl-version without --format" in capsys.readouterr().err


def test_the_script_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--list"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed] == [extra.name for extra in EXTRAS]
    assert {*listed[0]} == {"name", "paths", "needs", "adds"}
    assert script.main(["--check", "nonsense"]) == 2
    assert "nonsense: expected some of" in capsys.readouterr().err


@pytest.mark.long
def test_the_script_counts_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--count", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["core"] + sum(counts["extras"].values()) == counts["whole"]
    assert all(counts["extras"].values())


def test_a_copy_without_an_extra_has_none_of_its_files(tmp_path: Path) -> None:
    script.copy_without([extra for extra in EXTRAS if extra.name == "mscclpp"], tmp_path)
    assert not (tmp_path / "synth/extras/mscclpp").exists()
    assert not (tmp_path / "tests/mscclpp_player.py").exists()
    assert (tmp_path / "synth/extras/astra_sim").is_dir() and (tmp_path / "extras.py").is_file()
