"""topoplan completion: print a shell's completion script for topoplan and the topo-* commands."""

import argparse
import re
import sys

from ...extras import CODECS, Names
from ..commands import import_command, list_programs
from ..shared.common import Example, Parser, call_as, run_command
from ..topoplan import build_parser as build_whole

PROG = "topoplan completion"
# shtab adds this function to the bash script; bash completes with the words that it prints.
_TOPOLOGIES = "_topoplan_topology_or_file"
SHELLS = ("bash", "zsh", "tcsh")
EXAMPLES: tuple[Example, ...] = (
    ('eval "$(topoplan completion bash)"', "for this shell; put the line into ~/.bashrc for all"),
    ("topoplan completion zsh > _topoplan", "in a folder of zsh's $fpath"),
    ("topoplan completion tcsh > topoplan.csh", "read it with `source`, for instance in ~/.tcshrc"),
)
ABOUT = """\
Completes topoplan and each topo-* command: subcommands, options, and their values: collectives,
strategies, presets, files.
"""


def main(argv: list[str] | None = None) -> int:
    """Print the completion script for the shell named in `argv`, and return the exit code.

    `argv` None means sys.argv.
    """
    return run_command(PROG, lambda: _print(build_parser().parse_args(argv).shell))


def build_parser() -> Parser:
    """Return the parser of topoplan completion."""
    parser = Parser(PROG, EXAMPLES, ABOUT, "bash|zsh|tcsh")
    parser.add_argument(
        "shell", choices=SHELLS, metavar="SHELL", help=f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}"
    )
    return parser


def _print(shell: str) -> int:
    call_as("")
    sys.stdout.write(write_script(shell))
    return 0


def write_script(shell: str) -> str:
    """Return the completion script of `shell`, one of SHELLS, as text."""
    import shtab

    from ...topo.presets import PRESETS

    parsers: list[argparse.ArgumentParser] = [
        build_whole(with_options=True),
        *(import_command(name).build_parser() for name in list_programs()),
    ]
    # Names of topologies that are not files.
    topologies = ["local", *(preset.example for preset in PRESETS.values())]
    for parser in parsers:
        _name_values(parser, topologies)
    named = " ".join(topologies)
    function = {
        "bash": f'{_TOPOLOGIES}() {{ compgen -W "{named}" -- "$1"; compgen -f -- "$1"; }}\n',
        "zsh": f"{_TOPOLOGIES}() {{ _alternative 'presets:preset:({named})' 'files:file:_files' "
        "}\n",
        "tcsh": "",
    }[shell]
    scripts = [str(shtab.complete(parser, shell)) for parser in parsers]
    if shell == "zsh":
        return _join_zsh(scripts, function)
    return scripts[0].replace("\n", "\n" + function, 1) + "\n".join(["", *scripts[1:]])


def _join_zsh(scripts: list[str], function: str) -> str:
    """Return the scripts of several commands as one, which zsh loads from a file or by eval.

    A file says in its first line for which commands it is, and is called with the one in $service.
    """
    bodies: list[str] = []
    names: dict[str, str] = {}
    for script in scripts:
        body, separator, end = script.partition("\ntypeset -A opt_args\n")
        names |= {command: name for name, command in re.findall(r"compdef (\w+) -N (\S+)", end)}
        assert separator, "shtab writes zsh's scripts in another form"
        bodies.append("_shtab_" + body.partition("\n_shtab_")[2])
    lines = [
        f"#compdef {' '.join(names)}",
        function,
        *bodies,
        "typeset -A opt_args",
        "if [[ $zsh_eval_context[-1] == eval ]]; then",
        *(f"  compdef {name} {command}" for command, name in names.items()),
        "else",
        "  case $service in",
        *(f'    {command}) {name} "$@" ;;' for command, name in names.items()),
        "  esac",
        "fi",
    ]
    return "\n".join(lines) + "\n"


def _name_values(parser: argparse.ArgumentParser, topologies: list[str]) -> None:
    """Attach completions to the options of a parser: known words, or files."""
    from ...runtime.measuring.bench_options import DTYPE_NAMES, OP_NAMES
    from ...synth.ir.collective import COLLECTIVES
    from ...synth.strategy_names import STRATEGY_NAMES

    values = {
        "collective": COLLECTIVES,
        "first": COLLECTIVES,
        "strategy": ("auto", *STRATEGY_NAMES),
        "dtype": DTYPE_NAMES,
        "op": OP_NAMES,
        "compress": tuple(Names(CODECS)),
    }
    file = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
    topology = {"bash": _TOPOLOGIES, "zsh": _TOPOLOGIES, "tcsh": "f"}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                _name_values(one, topologies)
        elif action.dest in ("topology", "topologies", "second", "subject"):
            action.complete = topology  # type: ignore[attr-defined]
        elif (action.dest, action.metavar) == ("network", "LIST"):
            action.choices = ("loopback", "slow", *topologies)
        elif action.dest in values and action.choices is None:
            action.choices = values[action.dest]
        elif action.metavar in ("FILE", "PLAN", "DIR"):
            action.complete = file  # type: ignore[attr-defined]
