"""What documents show: their links, the files that they give, and their commands with the lines
that these print.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# How a line of a block begins that is a command, where no `$ ` says so; variables may stand before
# it.
PROGRAMS = (
    "apt-get",
    "make",
    "mpirun",
    "nvidia-smi",
    "pip",
    "python",
    "python3",
    "set",
    "srun",
    "topo-",
    "topoplan",
    "torchrun",
)
_MARK = re.compile(r"<!-- ((?:not run|slow): .+) -->")
_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`(topo-[a-z]+ [^`]+)`")
_NOT_SHOWN = re.compile(r"[\s─━]+|synthesized and verified in .*")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=\S*$")


@dataclass
class Command:
    """A command as it is shown: `printed` are the lines below it (None: none are shown), `mark` the
    comment above its block: `not run: why`, or `slow: why`, which `make package` runs and tests do
    not.
    """

    line: str
    printed: list[str] | None = None
    mark: str = ""

    @property
    def words(self) -> list[str]:
        """The command's words, without variables before it, a comment after it, and where its
        output goes.
        """
        line = re.split(r"\s{2,}#\s|\s#\s", self.line)[0]
        words = shlex.split(line.partition(" > ")[0].split(" | ")[0])
        while words and _VARIABLE.match(words[0]):
            del words[0]
        if (
            words[0] == "topoplan" and len(words) > 1 and words[1][0] != "-"
        ):  # its subcommands are the commands
            words[:2] = [f"topo-{words[1]}"]
        return words


@dataclass
class Page:
    """A document: commands and files in the order in which they are shown."""

    path: Path
    shown: list[Command | tuple[str, str]] = field(default_factory=list)
    inline: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)

    @property
    def commands(self) -> list[Command]:
        """The commands alone."""
        return [x for x in self.shown if isinstance(x, Command)]

    @property
    def is_slow(self) -> bool:
        """Whether some of them are too slow for the tests, so that `make package` runs them all."""
        return any(command.mark.startswith("slow") for command in self.commands)


def read_page(path: Path) -> Page:
    """Return what a document shows. Comments `<!-- not run: why -->` and `<!-- slow: why -->` are
    about the next block.
    """
    page = Page(path)
    prose: list[str] = []
    fence: tuple[str, str, list[str]] | None = None
    mark = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if fence is not None and line.strip() == "```":
            _add_block(page, *fence)
            fence, mark = None, ""
        elif fence is not None:
            fence[2].append(line)
        elif line.startswith("```"):
            fence = (line[3:].strip(), mark, [])
        elif found := _MARK.match(line):
            mark = found[1]
        else:
            if line.startswith("    ") and _is_command(line.strip()):
                page.shown.append(Command(line.strip(), None, mark))
            mark = mark if line.startswith("    ") or not line.strip() else ""
            prose.append(line)
    text = "\n".join(prose)
    page.links = _LINK.findall(re.sub(r"`[^`]*`", "", text))
    page.inline = [re.sub(r"\s+", " ", command) for command in _INLINE.findall(text)]
    return page


def _add_block(page: Page, language: str, mark: str, lines: list[str]) -> None:
    if re.fullmatch(r"[\w.-]+\.\w+", language):
        page.shown.append((language, "\n".join(lines) + "\n"))
    elif language == "python":
        page.shown.append(("", "\n".join(lines) + "\n"))
    elif language in ("", "sh", "console"):
        page.shown += _find_commands(lines, mark)


def _find_commands(lines: list[str], mark: str) -> Iterator[Command]:
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).split("\n")
    prompts = any(line.startswith("$ ") for line in joined)
    command: Command | None = None
    for line in joined:
        if line.startswith("$ ") or (not prompts and _is_command(line)):
            if command is not None:
                yield command
            command = Command(line.removeprefix("$ "), None, mark)
        elif command is not None and prompts:
            command.printed = [*(command.printed or []), line]
    if command is not None:
        yield command


def _is_command(line: str) -> bool:
    words = line.split()
    while words and _VARIABLE.match(words[0]):
        del words[0]
    first = words[0] if words else ""
    return len(words) > 1 and any(
        first == x or (x.endswith("-") and first.startswith(x)) for x in PROGRAMS
    )


def fits(shown: list[str], printed: str) -> bool:
    """Return whether these lines were printed. `...` stands for anything; spaces, rules of tables
    and seconds do not count.
    """
    kept = [line for line in printed.splitlines() if not _NOT_SHOWN.fullmatch(line)]
    pieces = " ".join(" ".join(shown).split()).split("...")
    pattern = ".*".join(re.escape(piece.strip()) + " ?" for piece in pieces)
    return re.fullmatch(pattern, " ".join(" ".join(kept).split()), re.DOTALL) is not None
