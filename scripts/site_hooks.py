"""What mkdocs calls while it builds the site (`make docs`): the package for the reference of the
API, what pages take from the sources (helps, folders, keys), pages from outside docs/, and links.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

from topoplan.cli.commands import import_command, list_commands
from topoplan.topo.facts import keys

ROOT = Path(__file__).resolve().parents[1]
# Where the site has what stands outside docs/, or has another name there: the README is its home.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "tests/README.md": "tests.md",
    "README.md": "index.md",
    "docs/index.md": "pages.md",
    "docs/schemas": "files.md",
}
FLOORS = ("topo", "synth", "runtime", "cli")
_COPIES = "files/"
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_NAMED = re.compile(r"\[`?([\w./-]+\.md)`?\]\(([^)\s#]+)((?:#[^)\s]*)?)\)")
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)


_VIEWS: list[tempfile.TemporaryDirectory[str]] = []  # gone when the build ends


@event_priority(100)  # before the plugin that reads the package
def on_config(config: Any) -> Any:
    """Let mkdocstrings read the checkout as `topoplan`, whatever its folder is called."""
    view = tempfile.TemporaryDirectory(prefix="topoplan-docs-")
    (Path(view.name) / "topoplan").symlink_to(ROOT)
    _VIEWS.append(view)
    handlers = config.plugins["mkdocstrings"].config.handlers
    handlers["python"]["paths"] = [view.name]
    return config


@patch.dict(os.environ, COLUMNS="80")
def write_helps(markdown: str) -> str:
    """Return the page of the commands with the help of each below its heading."""
    parsers = [import_command(name).build_parser() for name in ("topoplan", *list_commands())]
    for parser in parsers:
        heading = f"\n## {parser.prog}\n"
        if heading not in markdown:
            raise PluginError(f"docs/commands.md: no heading {parser.prog}")
        block = f"\n```text\n{parser.format_help().rstrip()}\n```\n"
        markdown = markdown.replace(heading, heading + block)
    return markdown


def list_folders() -> dict[str, str]:
    """Return the folders of the product, with the first lines of their docstrings."""
    files = [file for floor in FLOORS for file in sorted((ROOT / floor).rglob("__init__.py"))]
    docs = {
        f"{file.parent.relative_to(ROOT).as_posix()}/": ast.get_docstring(
            ast.parse(file.read_text(encoding="utf-8"))
        )
        for file in files
    }
    return {folder: " ".join((doc or "").split("\n\n")[0].split()) for folder, doc in docs.items()}


def write_folders(markdown: str) -> str:
    """Return the page on the architecture with a table of the folders at its end."""
    rows = [f"| `{folder}` | {doc} |" for folder, doc in list_folders().items()]
    return "\n".join([markdown, "| folder | contents |", "| --- | --- |", *rows, ""])


def write_keys(markdown: str) -> str:
    """Return the page on facts with a table of all keys at its end."""
    rows = [
        f"| `{key.subject}` | `{key}` | {key.meaning} |"
        for key in vars(keys).values()
        if isinstance(key, keys.Key)
    ]
    return "\n".join([markdown, "| subject | key | value |", "| --- | --- | --- |", *rows, ""])


def write_api(markdown: str) -> str:
    """Return the page on the API with mkdocstrings' directive below the heading of each name.

    Of types that programs only pass on, there is the docstring alone.
    """
    head, types, errors = re.split(r"^(?=## Types in|## Errors)", markdown, flags=re.MULTILINE)
    name, directive = re.compile(r"^### (\w+)$", re.MULTILINE), r"\g<0>\n\n::: topoplan.\1"
    short = directive + "\n    options: {members: false, merge_init_into_class: false}"
    return name.sub(directive, head) + name.sub(short, types) + name.sub(directive, errors)


# What pages have only on the site.
WRITERS = {
    "api.md": write_api,
    "commands.md": write_helps,
    "architecture.md": write_folders,
    "facts.md": write_keys,
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs/, and a copy of each file that some page links to."""
    for source, target in PAGES.items():
        if not source.endswith(".md"):
            continue
        replaced = files.get_file_from_path(target)
        if replaced is not None:
            files.remove(replaced)
        files.append(
            File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8"))
        )
    texts = {
        f"docs/{file.src_uri}": file.content_string
        for file in files.documentation_pages()
        if not file.generated_by
    }
    texts |= {
        source: (ROOT / source).read_text(encoding="utf-8")
        for source in PAGES
        if source.endswith(".md")
    }
    linked = {
        _resolve(source, link)
        for source, text in texts.items()
        for _, link, _ in _LINK.findall(text)
    }
    for name in sorted(linked - set(PAGES)):
        if not name.startswith(("docs/", "http")) and (ROOT / name).is_file():
            files.append(File.generated(config, _copy_of(name), abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return a page as the site needs it: its links, its lists, and what it takes from sources.

    MkDocs also passes `config` and `files`, which are not used.
    """
    target = page.file.src_uri
    source = next(
        (file for file, name in PAGES.items() if name == target and file.endswith(".md")),
        f"docs/{target}",
    )
    if target in WRITERS:
        markdown = WRITERS[target](markdown)
    parts = _FENCE.split(markdown)
    return "".join(
        part if part.startswith("```") else _adapt(part, source, target) for part in parts
    )


def _adapt(text: str, source: str, target: str) -> str:
    """Return prose with links as the site has them, and what Python's Markdown reads otherwise than
    GitHub's.
    """

    def relink(match: re.Match[str]) -> str:
        name = _resolve(source, match[2])
        if "://" in match[2]:
            return match[0]
        site = PAGES.get(name) or (
            name.removeprefix("docs/") if name.startswith("docs/") else _copy_of(name)
        )
        return f"{match[1]}{posixpath.relpath(site, posixpath.dirname(target) or '.')}{match[3]}"

    def name_page(match: re.Match[str]) -> str:
        """A link whose text is a file's name has the page's title on the site."""
        file = ROOT / _resolve(source, match[2])
        title = (
            re.search(r"^# (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            if file.is_file()
            else None
        )
        return f"[{title[1] if title else match[1]}]({match[2]}{match[3]})"

    text = _LINK.sub(relink, _NAMED.sub(name_page, text))
    lines: list[str] = []
    in_list = False
    for line in text.splitlines(keepends=True):
        if line.startswith(("- ", "1. ")):
            if lines and lines[-1].strip() and not in_list:
                lines.append("\n")  # a list needs an empty line before it
            in_list = True
        elif line[:1].strip():
            in_list = in_list and bool(lines) and bool(lines[-1].strip())
        if line.startswith("|"):
            line = (
                line.replace("\\|", "&#124;")
                if "`" not in line
                else re.sub(r"`[^`]*`", _unescape, line)
            )
        elif in_list and re.match(r" {2,3}\S", line):
            line = "    " + line.lstrip(" ")
        lines.append(line)
    return "".join(lines)


def _unescape(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def _resolve(source: str, link: str) -> str:
    """Return the path in the checkout that a link in a file of it means."""
    return (
        link
        if "://" in link
        else posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    )


def _copy_of(name: str) -> str:
    """Return where the site has a file that is no page; a text without a suffix is shown, not
    downloaded.
    """
    return f"{_COPIES}{name}" if "." in posixpath.basename(name) else f"{_COPIES}{name}.txt"
