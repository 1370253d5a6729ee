"""topo-probe --check: what is wrong with the machine. `topoplan doctor` is that review alone.

A review is what topo-probe says of a machine in place of showing it (cli/probing/added.py). The
doctor's findings are problems of the machine, each with a severity, evidence and advice; answers
are known causes of runs that hang, fail or are slow.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...topo.printable import printable
from ..probing.added import Review, Reviewed, list_boxes
from ..shared.common import Example, Parser, call_as, shown_name
from ..shared.outputs import OUTPUT, add_force

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...topo.answers import Answer
    from ...topo.extras.doctor import ComparedHost, Examination

PROG = "topo-doctor"
# From the worst on, as the doctor's view has them, whose import takes longer than a help.
_SEVERITIES = ("error", "warning", "note")
# What ends with exit code 1 if --fail-on is not given.
_FAIL_ON = "error"
# The files whose names say that they are for node_exporter.
_METRICS_SUFFIX = ".prom"


def _write(reviewed: Reviewed) -> str:
    arguments, columns = reviewed.arguments, reviewed.columns
    hosts = _list_hosts(reviewed)
    examination = _examine(reviewed, hosts)
    if arguments.prometheus or str(arguments.output or "").endswith(_METRICS_SUFFIX):
        from ...topo.extras.doctor.metrics import write_prometheus

        return write_prometheus(examination, hosts, arguments.fail_on or _FAIL_ON)
    from ...topo.extras.doctor import report
    from ...topo.pictures.fit import wrap_text

    width = () if columns is None else (columns,)
    lines = report(examination, *width, says_skipped=not arguments.quiet)
    findings = [finding.what for finding in examination.findings]
    lines += _describe(_list_answers(arguments.topologies, findings))
    text = "\n".join(map(printable, lines)) + "\n"
    return text if columns is None else wrap_text(text, columns)


def _list_answers(named: Sequence[str], findings: Sequence[str] = ()) -> list[Answer]:
    """Return why runs hang, fail or are slow, by texts that are named and by findings."""
    from dataclasses import replace

    from ...topo.answers import Question, ask

    texts = [text for text in map(_read, named) if text]
    answers = ask(Question("\n".join(texts), tuple(findings)))
    # lines are those of one text
    return [x if len(texts) == 1 else replace(x, line=None) for x in answers]


def _describe(answers: Sequence[Answer]) -> list[str]:
    from ...topo.answers import describe_answers

    return describe_answers(answers)


def _list_fields(reviewed: Reviewed) -> dict[str, Any]:
    findings = [x.what for x in _examine(reviewed, _list_hosts(reviewed)).findings]
    answers = _list_answers(reviewed.arguments.topologies, findings)
    return {"answers": [answer.to_json() for answer in answers]}


def _read(name: str) -> str:
    """Return a file's text; none of what is not a text."""
    from ...topo.answers import cut_text
    from ...topo.errors import InputError
    from ...topo.loader.resolve import is_archive, read_text

    path = Path(name)
    try:
        return "" if not path.is_file() or is_archive(path) else cut_text(read_text(path))
    except InputError:
        return ""


def _explain(named: Sequence[str], as_json: bool) -> str:
    answers = _list_answers(named)
    if as_json and answers:
        return json.dumps({"answers": [answer.to_json() for answer in answers]}, indent=2) + "\n"
    return "".join(f"{printable(line)}\n" for line in _describe(answers))


def _list_errors(reviewed: Reviewed) -> list[str]:
    from ...topo.extras.doctor.metrics import list_failures

    examination = _examine(reviewed, _list_hosts(reviewed))
    return list_failures(examination, reviewed.arguments.fail_on or _FAIL_ON)


def _examine(reviewed: Reviewed, hosts: Sequence[ComparedHost]) -> Examination:
    from ...topo.errors import InputError
    from ...topo.extras.doctor import examine
    from ...topo.extras.doctor.alike import name_hosts
    from ...topo.loader.resolve import resolve

    name, reference = reviewed.arguments.like, None
    if name is not None:
        like = name_hosts([name], [resolve(name, reviewed.arguments.box)])
        if len(like) > 1:
            raise InputError(f"{name}: {len(like)} hosts; expected one, which all should be like")
        (reference,) = like
    return examine(reviewed.topology, hosts, reference)


def _list_hosts(reviewed: Reviewed) -> list[ComparedHost]:
    """Return the hosts by the names that they were given as, else by those of the machine."""
    from ...topo.extras.doctor.alike import name_hosts

    given = reviewed.given or [reviewed.topology]
    named = reviewed.arguments.topologies
    return name_hosts(named if len(named) == len(given) else [x.name for x in given], given)


CHECK = Review(
    _write,
    _list_errors,
    options={
        "fail-on": {
            "choices": _SEVERITIES,
            "help": "with --check: end with exit code 1 from this severity on "
            f"(default {_FAIL_ON})",
        },
        "like": {
            "metavar": "HOST",
            "help": "with --check: compare each host with this one, named as TOPOLOGY is; what it "
            "lacks is an error",
        },
    },
    forms={"prometheus": "with --check: write Prometheus' text, for node_exporter to collect"},
    list_fields=_list_fields,
    explain=_explain,
)

EXAMPLES: tuple[Example, ...] = (
    ("topoplan doctor", "this machine: exit code 1 on errors"),
    ("topoplan doctor pcie-2socket --fail-on error -q", "nothing of what could not be checked"),
    (
        "topoplan doctor operators/node*.txt",
        "hosts that should be alike, by what was captured on each: what one of them lacks",
    ),
    (
        "topoplan doctor operators/node1.txt --like operators/node2.txt",
        "one host, held against a file of a good one",
    ),
    (
        "topoplan doctor dgx-a100 -o topo.prom --force",
        "Prometheus' text for node_exporter's text collector, which reads the file anew each time",
    ),
)
ABOUT = """\
Lists what is wrong with a machine: severity, evidence, advice. Several hosts are also compared with
each other: fewer GPUs or NICs than the others, narrower links, other versions. It is topo-probe
--check, and takes that command's other options too.
"""


def main(argv: list[str] | None = None) -> int:
    """Run topo-probe --check on the arguments, and return its exit code.

    It is 1 if a finding has the severity of --fail-on (default: error) or a worse one, or if no
    TOPOLOGY is a machine, but a text has an answer; else that of topo-probe.
    """
    from ..probe import main as probe

    given = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help", "--version"} & {*given}:
        build_parser().parse_args(given)
    called = shown_name(PROG)
    call_as(called)  # so that errors name the command in use
    try:
        return probe(["--check", *given])
    finally:
        call_as("" if called == PROG else called)


def build_parser() -> Parser:
    """Return the parser of what topoplan doctor is given most often."""
    parser = Parser(
        PROG, EXAMPLES, ABOUT, "[TOPOLOGY ...] [--like HOST] [--fail-on F] [--prometheus] [-o FILE]"
    )
    add = parser.add_argument
    add(
        "topologies",
        metavar="TOPOLOGY",
        nargs="*",
        help="the hosts, as topo-probe takes them: local (the default), files, folders or archives "
        "with a copy of /sys and /proc, presets",
    )
    for name, given in CHECK.options.items():
        add(f"--{name}", **{**given, "help": given["help"].removeprefix("with --check: ")})
    form = parser.add_mutually_exclusive_group()
    for name, line in CHECK.forms.items():
        form.add_argument(
            f"--{name}", action="store_true", help=line.removeprefix("with --check: ")
        )
    form.add_argument("--json", action="store_true", help="the machine, with its findings")
    add("-o", "--output", **OUTPUT, help="write to FILE, whole or not at all; .prom says what")
    add_force(parser)
    add("--sysfs-root", metavar="DIR", help="read /sys and /proc below DIR")
    for name, about in list_boxes().items():
        add(f"--{name}", metavar=name.upper(), help=about or argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
