"""topo-probe: show a machine's topology, for people and programs.

Extras (optional parts of topoplan) add sources, which find the topology, views, which write it, and
reviews, which say more of it (cli/probing/added.py).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..extras import LAUNCHES, Names
from ..topo.errors import InputError
from ..topo.pictures.colour import is_terminal, wants_colour
from ..topo.pictures.convert import convert_for
from ..topo.printable import printable_lines
from .probing.added import (
    PROBE_SOURCES,
    PROBE_VIEWS,
    PROBE_WRITERS,
    Reviewed,
    correct,
    find_reviews,
    list_boxes,
    list_corrections,
    list_formats,
    list_installed_reviews,
    list_reviews,
    list_suffixes,
    list_writers,
)
from .shared.common import (
    Example,
    Parser,
    find_width,
    list_examples,
    print_error,
    run_command,
)
from .shared.formats import check_pictures, choose_format
from .shared.outputs import (
    OUTPUT,
    add_csv,
    add_force,
    check_outputs,
    rows_csv,
    write_output,
    write_requested,
)
from .shared.progress import ProgressReporter
from .shared.selections import add_selections, select

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from ..topo.graph import Topology
    from .probing.added import Review, View

PROG = "topo-probe"
# The format of NCCL_TOPO_FILE, which writers write in their ways.
_XML = "nccl-xml"
# The formats that suffixes of -o imply, but for views.
_SUFFIXES = {
    ".dot": "dot",
    ".gv": "dot",
    ".json": "json",
    ".xml": _XML,
}
# The formats of --format, but for views.
_FORMATS = ("table", "json", "tree", "smi")

EXAMPLES: tuple[Example, ...] = (
    ("topo-probe", "this machine, as tables"),
    ("topo-probe -o machine.json", "this machine as a file that topo-synth reads"),
    ("topo-probe dgx-a100:2 --format tree", "a preset, as a tree"),
    ("topo-probe dgx1 --csv links.csv", "the links as rows, for spreadsheets and programs"),
    (
        "topo-probe matrix.txt topo.xml --network 25 -o both.json",
        "several hosts' files as one machine; what files do not say is given, also with "
        "--rate pcie=48 --rate nic=50",
    ),
    *list_examples(PROG),
)
ABOUT = """\
Shows a machine's GPUs, CPUs, NICs and switches, and the links between them. What cannot be found
out is named in a note, and everything else is shown. Bandwidths are in GB/s (1e9 bytes a second),
in one direction.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command with `argv` (default: sys.argv) and return its exit code.

    The code is 0 if done, 1 if it failed or errors were found, 2 for wrong usage, 130 if
    interrupted.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    sources = [f"--{name}" for name in PROBE_SOURCES.list_all() if getattr(arguments, name)]
    writer = _find_writer(arguments)
    files = [f"--{name}" for name in list_corrections() if getattr(arguments, name) is not None]
    for is_wrong, why in (
        (
            writer is not None and arguments.format not in (None, _XML),
            f"--{writer} writes {_XML}; leave --format out",
        ),
        (
            arguments.sysfs_root is not None and arguments.topologies,
            "--sysfs-root says where the local machine's files are; leave TOPOLOGY out",
        ),
        (
            writer is not None and len(arguments.topologies) > 1,
            f"--{writer} writes the file of one host; name one TOPOLOGY",
        ),
        (
            len(sources) > 1,
            f"{' and '.join(sources)}: each finds the topology; leave one of them out",
        ),
        (
            files and sources,
            f"{''.join(files)} takes the rates of a file; leave {''.join(sources)} out",
        ),
    ):
        if is_wrong:
            parser.error(why)
    return run_command(PROG, lambda: _probe(arguments), quiet=not _reports())


def build_parser() -> Parser:
    """Return the parser of topo-probe's command line."""
    sources, reviews = PROBE_SOURCES.describe(), list_reviews()
    parser = Parser(
        PROG,
        EXAMPLES,
        ABOUT,
        "[TOPOLOGY ...] [--format F] "
        + "".join(f"[--{name}] " for name, about in reviews.items() if about is not None)
        + "".join(f"[--{name}] " for name in PROBE_WRITERS.describe())
        + (f"[{' | '.join(f'--{name}' for name in sources)}] " if sources else "")
        + "[-o FILE]",
    )
    parser.add_argument(
        "topologies",
        metavar="TOPOLOGY",
        nargs="*",
        help="local (this machine, the default); a file: topoplan JSON, NCCL or RCCL XML, "
        "text of nvidia-smi topo -m or nvlink -R"
        + "".join(f", {about}" for about in list_formats())
        + "; a folder or tar archive with a copy of another machine's /sys and /proc; or a preset "
        "such as dgx1, dgx-a100:2, mesh:4x4, ring:8@25. Several are hosts of one machine, joined "
        "by a network and, where their GPUs are in one NVLink fabric, by that",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        choices=(*_FORMATS, *PROBE_VIEWS.describe()),
        help="what to write (default: what the suffix of -o says, else table)",
    )
    form.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="the same as --format json",
    )
    own = list_installed_reviews()
    for review in own:
        for name, line in review.forms.items():
            form.add_argument(f"--{name}", action="store_true", help=line)
    parser.add_argument(
        "-o",
        "--output",
        **OUTPUT,
        help="write to FILE, whole or not at all, instead of printing; "
        + "".join(f"{suffix}, " for suffix in list_suffixes())
        + ".dot, .json and .xml say what",
    )
    add_csv(parser, "a row for each link")
    add_force(parser, "--csv")
    for name, about in reviews.items():
        parser.add_argument(f"--{name}", action="store_true", help=about or argparse.SUPPRESS)
    for review in own:
        for name, given in review.options.items():
            parser.add_argument(f"--{name}", **given)
    for name, about in list_writers().items():
        parser.add_argument(f"--{name}", action="store_true", help=about or argparse.SUPPRESS)
    parser.add_argument(
        "--network",
        metavar="GBps",
        help="rate of each port into the network, if no file gives it",
    )
    parser.add_argument(
        "--rate",
        action="append",
        default=[],
        metavar="KIND=GBps",
        help="rate of links that files leave open: pcie=48, nic=50, nvlink=50 (of one), xgmi, "
        "c2c, smp; may be repeated",
    )
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="what the GPUs are, where a text does not say: B200, 'RTX PRO 6000', MI300X; sets the "
        "rates that are assumed",
    )
    for name, about in list_boxes().items():
        parser.add_argument(f"--{name}", metavar=name.upper(), help=about or argparse.SUPPRESS)
    add_selections(parser)
    parser.add_argument(
        "--sysfs-root",
        metavar="DIR",
        help="read /sys and /proc below DIR (a folder or a tar archive)",
    )
    for name, about in list_corrections().items():
        parser.add_argument(f"--{name}", metavar="FILE", help=about or argparse.SUPPRESS)
    for name in PROBE_SOURCES.list_all():
        parser.add_argument(
            f"--{name}", action="store_true", help=sources.get(name, argparse.SUPPRESS)
        )
    return parser


def _find_writer(arguments: argparse.Namespace) -> str | None:
    """Return the name of the writer whose option is given, None without one."""
    return next(
        (name for name in list_writers() if getattr(arguments, name.replace("-", "_"))), None
    )


def _find_view(form: str, writer: str | None) -> View | None:
    """Return the view of a writer, else that of a format, None for a format that is none."""
    view: View | None = None
    if writer is not None:
        view = PROBE_WRITERS.find(writer)
    elif form in PROBE_VIEWS.list_all():
        view = PROBE_VIEWS.find(form)
    return view


def _reports() -> bool:
    """Return whether this process reports: of several ranks, rank 0 does."""
    return not _is_launched() or os.environ["RANK"] == "0"


def _is_launched() -> bool:
    """Return whether torchrun started this process as one of several ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _probe(arguments: argparse.Namespace) -> int:
    progress, reviews = ProgressReporter(PROG, arguments, _reports()), find_reviews(arguments)
    writer = _find_writer(arguments)
    form = choose_format(
        arguments,
        {".xml": _XML} if writer is not None else {**list_suffixes(), **_SUFFIXES},
        _XML if writer is not None else next(iter(reviews), "table"),
        arguments.format,
    )
    view = _find_view(form, writer)
    if view is not None and view.is_svg:
        check_pictures(arguments, "output")
    if _reports():
        check_outputs(arguments, "output", "csv")
    source = next((name for name in PROBE_SOURCES.list_all() if getattr(arguments, name)), None)
    named: list[Topology] = []
    if source is None:

        def leaves_out(name: str, error: InputError) -> bool:
            said = _explain([name], reviews)
            if said:
                progress.tell(f"no machine to check: {error}")
            return bool(said)

        named = list_topologies(arguments, leaves_out)
        if not named:
            write_output(arguments, _explain(arguments.topologies, reviews, as_json=form == "json"))
            return 1
        topology = correct(select(_join(named, arguments), arguments), arguments)
    else:
        topology = PROBE_SOURCES.find(source)(arguments, progress)
    if not _reports():
        return 0
    to_file = arguments.output is not None
    given = {
        "colour": not to_file and wants_colour(sys.stdout),
        "wraps": not to_file and is_terminal(sys.stdout),
    }
    reviewed = Reviewed(topology, arguments, named, find_width() if given["wraps"] else None)
    if form in reviews:
        content: str | bytes = reviews[form].write(reviewed)
    elif view is not None:
        content = view.write(topology)
        if view.is_svg and to_file:
            content = convert_for(arguments.output, str(content))
        for note in view.list_notes(topology) if view.list_notes is not None else ():
            print_error(f"{PROG}: {note}")
    else:
        fields = {k: v for x in reviews.values() for k, v in x.list_fields(reviewed).items()}
        content = _render(topology, form, given, fields)
    write_output(arguments, content)
    if arguments.output is not None:
        progress.tell(f"{form} written to {arguments.output}")
    write_requested(
        arguments, "csv", progress, "links written to FILE", lambda: _links_csv(topology)
    )
    return _report_errors(reviewed, reviews, printed=form)


def name_topology(arguments: argparse.Namespace) -> Topology:
    """Return the topologies of `list_topologies` as one machine, with the rates of the arguments.

    The rates are those of --network, --rate and --gpu. Raise InputError if a topology cannot be
    read, or has no use for a rate.
    """
    return _join(list_topologies(arguments), arguments)


def _join(topologies: Sequence[Topology], arguments: argparse.Namespace) -> Topology:
    """Return topologies as one machine, with the rates that the arguments give."""
    given = (arguments.network, arguments.gpu, arguments.rate or None)
    if len(topologies) == 1 and given == (None, None, None):
        return topologies[0]
    from ..topo.derived.hosts import join_hosts
    from ..topo.derived.stated import NETWORK, parse_rate, parse_rates, state_board, state_rates

    if arguments.gpu is not None:
        topologies = state_board(topologies, arguments.gpu)
    topologies = state_rates(topologies, parse_rates(arguments.rate))
    if len(topologies) > 1:
        topologies = [join_hosts(topologies)]
    network = {} if arguments.network is None else {NETWORK: parse_rate(arguments.network)}
    return state_rates(topologies, network)[0]


def list_topologies(
    arguments: argparse.Namespace,
    leaves_out: Callable[[str, InputError], bool] = lambda name, error: False,
) -> list[Topology]:
    """Return the topologies that the arguments name, this host's by default.

    If the arguments name none and torchrun started this process as one of several ranks, it is that
    of the ranks' hosts; all ranks must call it then. `leaves_out` is asked of a name whose reading
    fails, with the error, which is raised unless the answer is yes. Files that are named twice are
    warned of on standard error.
    """
    if arguments.sysfs_root is not None:
        from ..topo.probe.join import probe_local

        return [probe_local(Path(arguments.sysfs_root))]
    names = arguments.topologies or ["local"]
    if names == ["local"] and _is_launched():
        join: Callable[[], Topology] = Names(LAUNCHES).find("hosts")
        return [join()]
    from ..topo.loader.resolve import resolve

    _warn_of_repeated(names)
    named = []
    for name in names:
        try:
            named.append(resolve(name, arguments.box))
        except InputError as error:
            if not leaves_out(name, error):
                raise
    return named


def _explain(names: Sequence[str], reviews: Mapping[str, Review], *, as_json: bool = False) -> str:
    """Return what reviews say of texts that have no machine."""
    return "".join(review.explain(names, as_json) for review in reviews.values())


def _warn_of_repeated(names: list[str]) -> None:
    """Warn of files that are named twice, which count as different hosts that are alike."""
    paths = [Path(name).resolve() for name in names if Path(name).is_file()]
    for path in dict.fromkeys(path for path in paths if paths.count(path) > 1):
        print_error(
            f"{PROG}: warning: {path.name} is given {paths.count(path)} times; counted as so many "
            "hosts that are alike"
        )


def _render(
    topology: Topology, form: str, given: dict[str, bool], fields: dict[str, object]
) -> str:
    """Return the topology in one of _FORMATS.

    `given` has the options of writers: colour, wraps (at the terminal's width). JSON has the
    `fields` beside the machine. Only the writer in use is imported, since some of them import
    solvers or rich.
    """
    if form == "table":
        from ..topo.pictures import table

        hint = "--format tree shows what there is, --json all that was asked\n"
        text = table.write(topology, given["colour"], given["wraps"])
        return text if topology.ranks else text + hint
    if form == "tree":
        from ..topo.pictures import text_tree

        return text_tree.write(topology, given["colour"], given["wraps"])
    if form == "smi":
        from ..topo.formats import smi

        return printable_lines(smi.write(topology))
    from ..topo import probe_json

    return probe_json.write(topology, fields)


def _links_csv(topology: Topology) -> str:
    """Return one row per direction of each link, with measurements and other facts about it."""
    return rows_csv(
        {
            "src": link.src,
            "dst": link.dst,
            "kind": link.kind,
            "count": link.count if link.is_counted else None,
            "bandwidth_GBps": float(link.bandwidth_GBps),
            "latency_us": float(link.latency_us),
            "source": link.source,
            **link.extra,
        }
        for link in topology.links
    )


def _report_errors(reviewed: Reviewed, reviews: Mapping[str, Review], printed: str) -> int:
    """Return the exit code: 1 if reviews have errors, else 0.

    Errors are printed, but for those of the review whose text was, `printed`.
    """
    errors = {name: review.list_errors(reviewed) for name, review in reviews.items()}
    for message in (x for name, own in errors.items() if name != printed for x in own):
        print_error(f"{PROG}: {message}")
    return 1 if any(errors.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
