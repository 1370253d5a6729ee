"""The parser of all commands, one-line errors, exit codes, and orderly exits."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from ...extras import EXAMPLES, Names
from ...topo.errors import InputError, TopoplanError, VerificationError, suggest
from ...topo.printable import printable
from ...topo.version import VERSION

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

# Exit code after Ctrl-C, as shells report it: 128 + SIGINT.
_INTERRUPTED = 130
# Errors of writing to standard output; errors of files that commands write are handled separately.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)
# Most columns of a paragraph in help texts: wider ones are hard to read.
_MAX_PROSE = 100
# What --help is given for one screen of it.
_CORE = "core"
# Column of the texts there, so that names of options and values are not on lines of their own.
_SHORT_HELP_POSITION = 24
# Text that replaces "(--option)" after an error about these parameters of the library.
_ADVICE = {"overwrite": ", or give --force", "max_bytes": " (-e)"}
# The name of the command in use if it is a subcommand of topoplan; see `call_as`.
_CALLED_AS = {"name": ""}
# The options of the command in use, from which errors name theirs; see `name_option`.
_OPTIONS: set[str] = set()

# A command line that runs as written, and its purpose.
Example = tuple[str, str]


class Parser(argparse.ArgumentParser):
    """An argument parser whose help begins with examples, and whose errors are one line.

    `prog` is the command's name, `usage` its arguments in short, `about` follows the examples, in
    paragraphs. Every parser has --version, -v and -q. With `first` the help begins with so many
    examples and ends with the others, and `--help core` prints one screen: these, and the options
    that no extra (optional part) adds. `spellings` maps other names of options, which are
    understood but not shown, to them; `answers` maps options of other tools that this one lacks to
    what to do instead.
    """

    spellings: Mapping[str, str] = MappingProxyType({})
    answers: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        prog: str,
        examples: Sequence[Example],
        about: str,
        usage: str,
        first: int | None = None,
    ) -> None:
        super().__init__(
            prog=shown_name(prog), formatter_class=_Formatter, allow_abbrev=False, add_help=False
        )
        self.examples, self.about, self._first = examples, about, first
        self._of_extras: list[argparse._ArgumentGroup] = []
        indent = " " * len(f"usage: {self.prog} ")
        self.usage = f"{self.prog} " + f"\n{indent}".join(_wrap(usage, find_width() - len(indent)))
        common = self._common = self.add_argument_group("of every command")
        if first is None:
            common.add_argument("-h", "--help", action="help", help="show this help")
        else:
            about_help = f"show this help, or with {_CORE} one screen of it"
            common.add_argument("-h", "--help", action=_ShowHelp, metavar=_CORE, help=about_help)
        common.add_argument(
            "--version", action="version", version=f"topoplan {VERSION}", help="show the version"
        )
        loud = common.add_mutually_exclusive_group()
        loud.add_argument(
            "-v",
            "--verbose",
            action="store_true",
            help="print progress to standard error even when it is not a terminal",
        )
        loud.add_argument(
            "-q",
            "--quiet",
            action="store_true",
            help="print errors only, neither progress nor messages; results are printed as usual",
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments (None: sys.argv).

        Options may stand between positional arguments, unless there are subcommands or `--`.
        """
        given = list(sys.argv[1:] if args is None else args)
        # argparse cannot do both, and subcommands have options of their own.
        if self._subparsers is None and "--" not in given:
            return self.parse_intermixed_args(given, namespace)
        return super().parse_args(given, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; exit with code 2 at an unknown option, naming the nearest known one.

        argparse calls this for `parse_args`, too. From now on `name_option` names this parser's
        options.
        """
        given = list(sys.argv[1:] if args is None else args)
        _OPTIONS.clear()
        _OPTIONS.update(self._option_string_actions)
        for index, word in enumerate(given[: given.index("--") if "--" in given else len(given)]):
            name, equals, value = word.partition("=")
            if name in self.spellings:
                given[index] = f"{self.spellings[name]}{equals}{value}"
            elif name.startswith("--") and name not in self._option_string_actions:
                if name in self.answers:
                    self.error(f"there is no option {name}: {self.answers[name]}")
                self.error(f"there is no option {name}{suggest(name, self._option_string_actions)}")
            elif word[:2] in self.answers:
                self.error(f"there is no option {word[:2]}: {self.answers[word[:2]]}")
        return super().parse_known_args(given, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among the choices, and name the nearest one."""
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            raise argparse.ArgumentError(
                action,
                f"{value!r} is unknown{suggest(str(value), known)}; expected one of "
                f"{', '.join(known)}",
            )

    def error(self, message: str) -> NoReturn:
        """Print `message` as an error on standard error and exit with code 2."""
        print_error(f"{self.prog}: error: {message} (see {self.prog} --help)")
        raise SystemExit(2)

    def add_extra(self, name: str) -> argparse._ArgumentGroup:
        """Return a new group of the help for the options that the extra `name` adds.

        `format_core_help` leaves the group out.
        """
        group = self.add_argument_group(name)
        self._of_extras.append(group)
        return group

    def format_help(self) -> str:
        """Return the help: examples as typed, paragraphs as wide as the terminal."""
        width = find_width()
        lines = ["examples:", *_list_examples(self.examples[: self._first], width)]
        for text in self.about.split("\n\n"):
            lines += ["", *_wrap(text, min(width, _MAX_PROSE))]
        self._action_groups.sort(key=lambda group: group is self._common)
        self.description = "\n".join(lines)
        if self._first is not None:
            others = _list_examples(self.examples[self._first :], width)
            self.epilog = "\n".join(["more examples:", *others])
        return super().format_help()

    def format_core_help(self) -> str:
        """Return one screen of the help: some examples, and the core's options, a line for each."""
        formatter = _ShortFormatter(self.prog)
        formatter.add_usage(self.usage, [], [])
        examples = self.examples[: self._first]
        lines = [f"  {command}  # {meaning}" for command, meaning in examples]
        formatter.add_text("\n".join(["examples:", *lines]))
        for group in self._action_groups:
            if group is not self._common and group not in self._of_extras:
                formatter.start_section(group.title)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
        formatter.add_text(f"{self.prog} --help has all of it, and what extras add.")
        return formatter.format_help()

    def describe_in_prose(self) -> None:
        """Set `description` to `about` without the examples, for generated documentation."""
        self.description = "\n\n".join(" ".join(text.split()) for text in self.about.split("\n\n"))

    def print_help(self, file: SupportsWrite[str] | None = None, *, is_core: bool = False) -> None:
        """Print the help, or with `is_core` one screen of it, to `file` or standard output.

        Exit with code 1 if it cannot be written.
        """
        try:
            text = self.format_core_help() if is_core else self.format_help()
            (file or sys.stdout).write(text)
        except OSError as error:
            raise SystemExit(_drop_output(self.prog, error, 0)) from None

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit with `status`, or with code 1 if that is 0 but standard output cannot be written.

        argparse calls this, for instance after --help and --version.
        """
        super().exit(end_output(self.prog, status), message)
        raise AssertionError("ArgumentParser.exit does not return")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help whose texts begin in column 22, which leaves room for them in 80 columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=22, width=find_width())

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Return "-o, --output FILE" on every version of Python."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrap(text, width)


class _ShortFormatter(_Formatter):
    """Help with one line for each option, which says where its text is cut."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._max_help_position = _SHORT_HELP_POSITION

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [textwrap.shorten(text, width, placeholder=" ...")]


class _ShowHelp(argparse.Action):
    """Prints the help and ends; what else is given is what the user wants to know it for."""

    def __init__(self, option_strings: Sequence[str], metavar: str, help: str, **_: Any) -> None:
        super().__init__(
            option_strings,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            nargs="?",
            metavar=metavar,
            help=help,
        )

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        parser.print_help(is_core=values == _CORE)
        parser.exit()


def mention(group: argparse._ArgumentGroup, spelled: str, about: str) -> None:
    """Show `spelled` with its help text `about` in a group of the help, without adding an option.

    It is for values that an extra adds to an option which stands elsewhere.
    """
    group._group_actions.append(
        argparse.Action([spelled], argparse.SUPPRESS, nargs=0, help=about.replace("%", "%%"))
    )


def _list_examples(examples: Sequence[Example], width: int) -> list[str]:
    """Return lines of examples: the command as it is typed, what it is for below."""
    return [
        line
        for command, meaning in examples
        for line in (f"  {command}", *_wrap(meaning, width, " " * 6))
    ]


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Break a text between words only."""
    return textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def list_examples(prog: str) -> tuple[Example, ...]:
    """Return the examples (command line, meaning) that extras add to the help of `prog`."""
    added = Names(EXAMPLES)
    about = added.describe()
    return tuple((line, about[line]) for line, of in added.list_modules().items() if of == prog)


def find_width() -> int:
    """Return the columns for help and tables: the terminal's less two, or 78 without a terminal.

    At least 40.
    """
    return max(40, shutil.get_terminal_size().columns - 2)


def call_as(name: str) -> None:
    """Set the name that errors and help use from now on for the command; "" ends that.

    It is "topoplan synth" if topo-synth runs as a subcommand.
    """
    _CALLED_AS["name"] = name


def shown_name(prog: str) -> str:
    """Return the name by which the user called the command `prog`."""
    return _CALLED_AS["name"] or prog


def read_number(text: str, most: float, expected: str) -> float:
    """Return the number that an option's text gives, which must be above 0 and up to `most`.

    Raise ArgumentTypeError for any other text, with `expected` as the description of a valid one.
    """
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= most:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")


def file_name(text: str) -> str:
    """Return the file name given to an option unchanged: a `type` for argparse.

    Raise ArgumentTypeError if it is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; name a file")
    return text


def say_error(prog: str, message: str) -> None:
    """Print `message` as an error of the command `prog` on standard error.

    Do nothing if that cannot be written.
    """
    print_error(f"{shown_name(prog)}: error: {message}")


def print_error(line: str) -> None:
    """Print a line on standard error, without adding the command's name as `say_error` does.

    Control characters are escaped (see `printable`). Do nothing if standard error cannot be
    written.
    """
    with contextlib.suppress(OSError):
        # The end of the line with it: unbuffered, `print` writes it apart, and ranks write between.
        print(f"{printable(line)}\n", end="", file=sys.stderr, flush=True)


def name_option(error: TopoplanError) -> str:
    """Return an error's message, with the option of this command that sets its parameter, if any.

    Options are named like parameters, except for `_` and a plural: without_links is --without-link.
    """
    if error.parameter is None:
        return str(error)
    option = f"--{error.parameter.replace('_', '-')}"
    options = sorted({option, option.removesuffix("s")} & _OPTIONS)
    said = str(error).removesuffix(f", or give {error.parameter}=True")
    return f"{said}{_ADVICE.get(error.parameter) or ''.join(f' ({each})' for each in options)}"


def run_command(prog: str, body: Callable[[], int], *, quiet: bool = False) -> int:
    """Run a command's body and return its exit code; print a TopoplanError as one line on stderr.

    `prog` is the command's name. The code is that of `body`, of the error, 130 after Ctrl-C, or 1
    if standard output cannot be written, unless its reader has closed it. With `quiet`, errors that
    another process also reports (bad input, a plan for other ranks) are not printed.
    """
    if sys.stdout is None:
        # Closed by the shell (>&-): a command may still be run for the file that it writes.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    try:
        return end_output(prog, _explain_missing_torch(body))
    except TopoplanError as error:
        if not quiet or not isinstance(error, (InputError, VerificationError)):
            say_error(prog, name_option(error))
        return end_output(prog, error.exit_code, silent=True)
    except KeyboardInterrupt:
        print_error(f"{shown_name(prog)}: interrupted")
        return end_output(prog, _INTERRUPTED, silent=True)
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        return _drop_output(prog, error, 0)


def _explain_missing_torch(body: Callable[[], int]) -> int:
    try:
        return body()
    except ImportError as error:
        from ...runtime.ranks.torch_extra import explain_import_error

        raise explain_import_error(error) from None


def end_output(prog: str, code: int, *, silent: bool = False) -> int:
    """Flush standard output and return the exit code: `code`, or 1 if that is 0 but flushing fails.

    A failure is reported on one line, unless `silent`. A reader that has closed its end of a pipe
    is no failure. After both, standard output leads nowhere.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except OSError as error:
        return _drop_output(prog, error, code, silent=silent)


def _drop_output(prog: str, error: OSError, code: int, *, silent: bool = False) -> int:
    """Close standard output after `error` and return the exit code that replaces `code`.

    If a reader has closed its end (a pipe into `head`), that is no failure.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return code
    if not silent:
        say_error(prog, f"standard output cannot be written: {error.strerror}")
    return code or 1
