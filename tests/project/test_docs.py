"""Documents name only files that are there; examples print what is shown."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launch import run_command
from needs import long_cases
from shown_blocks import PROGRAMS, Command, Page, fits, read_page
from shown_commands import NAMES, print_help

import topoplan
from topoplan.cli.commands import import_command
from topoplan.cli.shared.common import Parser

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("topo", "synth", "runtime", "cli", "tests", "benchmarks", "examples", "scripts")
FILES = [
    file.relative_to(ROOT).as_posix() for folder in FOLDERS for file in (ROOT / folder).rglob("*.*")
]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
# Without the lines of the next changelog, each in a file.
PAGES = sorted(set((ROOT / "docs").rglob("*.md")) - set((ROOT / "docs" / "changes").glob("*")))
DOCUMENTS = [ROOT / "README.md", *PAGES]
TEXTS = [
    *DOCUMENTS,
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    ROOT / "tests" / "README.md",
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_a_document_names_are_there(document: Path) -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|c|sh))`", document.read_text(encoding="utf-8")))
    missing = [
        name
        for name in named
        if not any(file == name or file.endswith(f"/{name}") for file in FILES)
    ]
    assert missing == []


def test_the_site_says_what_every_folder_of_the_product_has() -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra docs)")
    folders = import_module("site_hooks").list_folders()
    assert [folder for folder, doc in folders.items() if not doc] == [] and len(folders) > 50


@pytest.mark.parametrize("document", TEXTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document: Path) -> None:
    missing = []
    for link in read_page(document).links:
        name, _, anchor = link.partition("#")
        if "://" in name or name.startswith("mailto:"):
            continue
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in _list_anchors(target)):
            missing.append(link)
    assert missing == []


def _list_anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub and the site make them."""
    text = re.sub(
        r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_page_is_in_the_site_and_two_clicks_from_the_start() -> None:
    listed = re.findall(
        r" ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES}
    assert pages <= set(listed)
    reached = {"index.md"}
    for _ in range(2):
        reached |= {
            link.partition("#")[0]
            for name in reached & pages
            for link in read_page(ROOT / "docs" / name).links
        }
    assert pages - reached == set()


def test_the_documents_are_short() -> None:
    """README and CONTRIBUTING included; not the schemas, pictures and the changelog."""
    files = [*PAGES, ROOT / "docs" / "site.css", ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    assert sum(file.stat().st_size for file in files) <= 200_000


def test_every_environment_variable_is_in_the_table() -> None:
    pages = [ROOT / "docs" / "environment.md", ROOT / "tests" / "README.md"]
    page = "".join(file.read_text(encoding="utf-8") for file in pages)
    named = re.compile(r"\bTOPOPLAN_(?!ATTRIBUTES|PREFIX)[A-Z_]*[A-Z]\b")
    folders = ("runtime", "cli", "topo", "synth", "tests", "examples", "scripts")
    read = {
        name
        for x in folders
        for file in (ROOT / x).rglob("*.py")
        for name in named.findall(file.read_text("utf-8"))
    }
    assert set(named.findall(page)) == read


def test_messages_that_troubleshooting_quotes_are_printed_by_something() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [
        text
        for row in re.findall(r"^\| ([^|]*) \|", page, re.MULTILINE)
        for text in re.findall(r"`([^`]* [^`]*)`", row)
    ]
    product = "".join(
        file.read_text("utf-8")
        for x in ("runtime", "cli", "topo", "synth", "examples")
        for file in (ROOT / x).rglob("*.py")
    )
    product = re.sub(r'"\s*\n\s*f?"', "", product)  # a message that goes on in the next line
    assert len(quoted) > 10 and [text for text in quoted if text not in product] == []


@pytest.mark.long
def test_the_site_is_built_and_asks_no_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed (extra docs)")
    done = run_command(
        sys.executable, "-m", "mkdocs", "build", "--quiet", "-d", str(tmp_path / "site"), cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    pages = {
        file.relative_to(site).as_posix(): file.read_text(encoding="utf-8")
        for file in site.rglob("*.html")
    }
    made = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in PAGES}
    assert made | {"pages.html"} <= set(pages)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.split("**")[1] in pages["index.html"]
    assert (
        "usage: topo-synth" in pages["commands.html"]
        and "Return the verified plan" in pages["api.html"]
        and "time_limit_s: float = 60.0" in re.sub("<[^>]*>", "", pages["api.html"])
        and "runtime/extras/reshard/" in pages["architecture.html"]
        and "pcie_max_width" in pages["facts.html"]
    )
    fetched = re.compile(
        r"<(?:script|img|link|iframe|source)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
    )
    assert {name: found for name, text in pages.items() if (found := fetched.findall(text))} == {}
    styles = "".join(file.read_text(encoding="utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", styles) == []


@pytest.mark.parametrize("document", TEXTS, ids=lambda path: path.name)
def test_the_commands_of_a_document_are_such_as_their_parsers_take(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = read_page(document)
    for line in page.inline:
        _check_options(Command(line).words, monkeypatch)
    for shown in page.commands:
        if _is_pattern(shown):
            _check_options(shown.words, monkeypatch)
        else:
            _check_words(shown.words, monkeypatch)


def _is_pattern(shown: Command) -> bool:
    """Return whether what is to be put in is left to the reader."""
    return shown.line.startswith("topo-") and re.search(r"\.\.\.|\[", shown.line) is not None


def _list_run(page: Page) -> list[Command]:
    """The commands that are run here. Pages with slow ones run whole in `make package`, from the
    wheel.
    """
    return [
        shown
        for shown in page.commands
        if not (page.is_slow or shown.mark or _is_pattern(shown))
        and shown.words[0].startswith("topo-")
    ]


RUN = [path for path in TEXTS if _list_run(read_page(path))]
# Pages whose commands take moments.
SHORT = ("clusters.md", "index.md", "install.md")


@pytest.mark.parametrize(
    "document",
    long_cases(RUN, *(path for path in RUN if path.name not in SHORT)),
    ids=lambda path: path.name,
)
def test_the_commands_that_a_document_shows_print_what_it_shows(
    document: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a folder with the files that the page gives, one after the other."""
    page = read_page(document)
    run = _list_run(page)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for shown in page.shown:
        if isinstance(shown, tuple):
            if shown[0]:
                (tmp_path / shown[0]).write_text(shown[1], encoding="utf-8")
            continue
        if shown not in run:
            continue
        module, *arguments = shown.words
        for example in (ROOT / "examples").rglob("*.*"):
            read = [
                word.removeprefix("file:")
                for before, word in pairwise(shown.words)
                if before not in ("-o", "--trace", "--plot")
            ]
            if example.name in read and not (tmp_path / example.name).exists():
                shutil.copy(example, tmp_path)
        capsys.readouterr()
        code = import_command(module.removeprefix("topo-")).main(arguments)
        captured = capsys.readouterr()
        assert code == 0, (shown.line, captured.err)
        assert shown.printed is None or fits(shown.printed, captured.out), (
            shown.line,
            captured.out,
        )


class _ParsedError(Exception):
    """What a command's parser ends with, here, once it has read the arguments."""


def _check_words(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a command names a program, a file, a target or an option that does not exist."""
    first, *rest = words
    if first in ("mpirun", "srun"):
        first, *rest = words[next(i for i, word in enumerate(words) if word.startswith("topo-")) :]
    if first.startswith("topo-"):
        _parse(import_command(first.removeprefix("topo-")), rest, monkeypatch)
    elif (
        first in ("python", "torchrun")
        and "-m" in rest
        and rest[rest.index("-m") + 1].startswith("topoplan.cli.")
    ):
        name = rest[rest.index("-m") + 1].removeprefix("topoplan.cli.")
        _parse(import_command(name), rest[rest.index("-m") + 2 :], monkeypatch)
    elif first == "python" and rest[:2] == ["-m", "examples.lab"]:
        _parse(import_module("examples.lab.command"), rest[2:], monkeypatch)
    elif first in ("python", "torchrun"):
        files = [x for x in rest if x.endswith(".py") and "/" in x]
        assert [x for x in files if not (ROOT / x).exists()] == [], words
    elif first == "make":
        made = re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE)
        assert [x for x in rest if "=" not in x and x not in made] == [], words
    elif first == "pip":
        wanted = re.findall(r"\[(\w+)\]", " ".join(rest))
        assert [x for x in wanted if not re.search(rf"^{x} = \[", PYPROJECT, re.MULTILINE)] == [], (
            words
        )
        pinned = re.findall(r"torch==([\d.]+)", " ".join(rest))
        assert [x for x in pinned if f"TORCH_VERSION ?= {x}\n" not in MAKEFILE] == [], words
    else:
        assert first in PROGRAMS, words


def _check_options(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a command that is mentioned, with some of its options only, does not have one of
    them.
    """
    options = [
        word.partition("=")[0]
        for word in words[: words.index("--") if "--" in words else None]
        if word[0] == "-"
    ]
    known: set[str] = set()

    def note(parser: Parser, *_: Any) -> Any:
        known.update(parser._option_string_actions)
        raise _ParsedError

    with monkeypatch.context() as patched:
        patched.setattr(Parser, "parse_args", note)
        with pytest.raises(_ParsedError):
            import_command(words[0].removeprefix("topo-")).main([])
    assert [option for option in options if option not in known and option.strip("-")] == [], words


def _parse(module: Any, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the parser of a command's module read arguments, and do nothing more; what follows `--`
    is a command too.
    """
    own = (
        arguments[: arguments.index("--")]
        if module.__name__.endswith(".emulate") and "--" in arguments
        else arguments
    )
    real = Parser.parse_args

    def parse(parser: Parser, args: Any = None, namespace: Any = None) -> Any:
        real(parser, args, namespace)
        raise _ParsedError

    with monkeypatch.context() as patched:
        patched.setattr(Parser, "parse_args", parse)
        with pytest.raises(_ParsedError):
            module.main(arguments)
    if len(own) < len(arguments):  # topo-emulate
        _check_words(arguments[len(own) + 1 :], monkeypatch)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_python_of_the_first_pages_runs_without_a_gpu(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer pastes it whole, most often on a machine that has neither GPUs nor torch, and in
    the folder of the page's commands, which write plan.json; a plan of a search that is stopped
    soon will do.
    """
    soon = partial(topoplan.synthesize, time_limit_s=0.1)
    monkeypatch.setattr(topoplan, "synthesize", soon, raising=False)
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks and not any("probe()" in block for block in blocks)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text("the command's")
    for block in blocks:
        exec(compile(block, page, "exec"), {})
    assert (tmp_path / "dgx1-plan.json").exists()


@pytest.mark.long
def test_the_python_of_the_tutorial_runs(
    plans: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its commands make before, and it reads, is a plan."""
    shutil.copy(plans("ring:4"), tmp_path / "plan.json")
    monkeypatch.chdir(tmp_path)
    shown = [x for x in read_page(ROOT / "docs" / "tutorial.md").shown if isinstance(x, tuple)]
    blocks = [text for name, text in shown if not name and text.startswith("import topoplan")]
    assert blocks
    for block in blocks:
        exec(compile(block, "tutorial.md", "exec"), {})


def test_the_lines_of_the_page_on_nccl_set_the_variable_around_one_communicator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "nccl.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    with topoplan.nccl_graph("ring:4") as path:
        assert path is not None
        (tmp_path / "graph.xml").write_text(path.read_text())
    seen: list[str | None] = []
    stand_in = SimpleNamespace(
        zeros=lambda *shape, device: device,
        init_process_group=lambda backend: seen.append(os.environ.get("NCCL_GRAPH_FILE")),
        all_reduce=lambda tensor: seen.append(os.environ.get("NCCL_GRAPH_FILE")),
    )
    stand_in.distributed = stand_in
    monkeypatch.delenv("NCCL_GRAPH_FILE", raising=False)
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    monkeypatch.setitem(sys.modules, "torch.distributed", stand_in)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/nccl.md", "exec"), {})
    assert seen == [None, str(tmp_path / "graph.xml")] and "NCCL_GRAPH_FILE" not in os.environ


def test_the_site_has_the_help_of_each_command_under_its_heading() -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra docs)")
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    shown = import_module("site_hooks").write_helps(page)
    for name in NAMES:
        assert f"```text\n{print_help(name).rstrip()}\n```\n" in shown
