"""topo-probe: what a machine is, for people and for programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .common import Parser, run_command

if TYPE_CHECKING:
    import argparse

    from ..topo.graph import Topology

PROG = "topo-probe"
FORMATS = ("table", "json", "nccl-xml", "dot", "svg")

DESCRIPTION = """\
examples:
  topo-probe                                   this machine, as tables
  topo-probe dgx1 --format svg -o dgx1.svg     a picture of a preset
  topo-probe --json -o machine.json            this machine as a file that topo-synth reads
  topo-probe topo.xml                          an NCCL or RCCL topology file, as tables
  topo-probe dgx-a100:2 --format nccl-xml      a preset as a file that NCCL reads

Shows what a machine is: GPUs, CPUs, NICs, switches and the links between them. What could not be learned is said in
a note, and the rest is shown all the same. Bandwidths are in GB/s (1e9 bytes a second), in one direction.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code (0 done, 1 failed, 2 usage, 130 interrupted)."""
    arguments = _parser().parse_args(argv)
    return run_command(PROG, lambda: _probe(arguments))


def _parser() -> Parser:
    parser = Parser(PROG, DESCRIPTION)
    parser.usage = f"{PROG} [TOPOLOGY] [--format {'|'.join(FORMATS)}] [-o FILE]"
    parser.add_argument(
        "topology",
        metavar="TOPOLOGY",
        nargs="?",
        default="local",
        help="local (this machine, the default), a file (topoplan JSON, NCCL or RCCL XML, ...), or a preset such as "
        "dgx1, dgx-a100:2, mesh:4x4, ring:8@25",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--format", choices=FORMATS, default="table", help="what to write (default: table)")
    form.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write to FILE, whole or not at all, instead of printing"
    )
    return parser


def _probe(arguments: argparse.Namespace) -> int:
    from ..topo.resolve import resolve

    topology = resolve(arguments.topology)
    to_terminal = arguments.output is None and sys.stdout.isatty()
    text = _written(topology, arguments.format, to_terminal)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        from ..topo.files import write_whole

        write_whole(arguments.output, text)
    return 0


def _written(topology: Topology, form: str, colour: bool) -> str:
    """The topology in one of FORMATS; each writer is imported when it is asked for."""
    if form == "json":
        from dataclasses import replace

        return replace(topology, extra={**topology.extra, "fingerprint": topology.fingerprint}).dumps()
    if form == "nccl-xml":
        from ..topo.formats import nccl_xml

        return nccl_xml.write(topology)
    if form == "dot":
        from ..topo.formats import dot

        return dot.write(topology)
    if form == "svg":
        from ..topo.formats import svg

        return svg.write(topology)
    from ..topo.formats import table

    return table.write(topology, colour)


if __name__ == "__main__":
    sys.exit(main())
