"""topo-probe: what a machine is, for people and for programs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .common import Parser, run_command

if TYPE_CHECKING:
    import argparse

    from ..topo.graph import Topology

PROG = "topo-probe"
FORMATS = ("table", "json", "tree", "smi", "nccl-xml", "dot", "svg")

DESCRIPTION = """\
examples:
  topo-probe                                   this machine, as tables
  topo-probe --check                           what is wrong with it, and what to do; exit code 1 on errors
  topo-probe --json -o machine.json            this machine as a file that topo-synth reads
  topo-probe matrix.txt --format svg -o m.svg  a picture of what somebody's nvidia-smi topo -m says
  topo-probe --for-vm -o topo.xml              a file for NCCL_TOPO_FILE, inside a virtual machine
  topo-probe dgx-a100:2 --format tree          a preset, as a tree
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint ... -m topoplan.cli.probe --json
                                               several hosts, each by its own probe, as one topology
  torchrun --nproc-per-node 8 -m topoplan.cli.probe --measure -o machine.json
                                               measure every link, alone and all together, and believe what is true

Shows what a machine is: GPUs, CPUs, NICs, switches and the links between them. What could not be learned is said in
a note, and the rest is shown all the same. Bandwidths are in GB/s (1e9 bytes a second), in one direction.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code (0 done, 1 failed or errors found, 2 usage, 130 interrupted)."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.for_vm and arguments.format not in (None, "nccl-xml"):
        parser.error("--for-vm writes nccl-xml; leave --format out")
    if arguments.sysfs_root is not None and arguments.topology != "local":
        parser.error("--sysfs-root says where the local machine's files are; leave TOPOLOGY out")
    return run_command(PROG, lambda: _probe(arguments), quiet=_is_launched() and not _is_first())


def _parser() -> Parser:
    parser = Parser(PROG, DESCRIPTION)
    parser.usage = f"{PROG} [TOPOLOGY] [--format {'|'.join(FORMATS)}] [--check] [--for-vm] [--measure] [-o FILE]"
    parser.add_argument(
        "topology",
        metavar="TOPOLOGY",
        nargs="?",
        default="local",
        help="local (this machine, the default); a file: topoplan JSON, NCCL or RCCL XML, hwloc XML, nvidia-smi topo -m or "
        "nvlink -R text; a folder or tar archive with a copy of another machine's /sys and /proc; or a preset such as "
        "dgx1, dgx-a100:2, mesh:4x4, ring:8@25",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--format", choices=FORMATS, help="what to write (default: table)")
    form.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write to FILE, whole or not at all, instead of printing"
    )
    parser.add_argument(
        "--check", action="store_true", help="say what is wrong: severity, evidence, advice; exit code 1 on errors"
    )
    parser.add_argument(
        "--for-vm", action="store_true", help="write NCCL XML for use inside a VM: its addresses, credible link speeds"
    )
    parser.add_argument("--sysfs-root", metavar="DIR", help="read /sys and /proc below DIR (a folder or a tar archive)")
    parser.add_argument(
        "--measure", action="store_true", help="under torchrun: measure the links by sending, one rank a GPU"
    )
    return parser


def _is_launched() -> bool:
    """Whether this process is one of several ranks, as torchrun starts them; the first speaks for all."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _is_first() -> bool:
    return os.environ["RANK"] == "0"


def _probe(arguments: argparse.Namespace) -> int:
    topology = _measured(arguments) if arguments.measure else _told(arguments)
    if _is_launched() and not _is_first():
        return 0
    to_terminal = arguments.output is None and sys.stdout.isatty()
    form = "nccl-xml" if arguments.for_vm else arguments.format or ("check" if arguments.check else "table")
    text = _written(topology, form, to_terminal, arguments.for_vm)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        from ..topo.files import write_whole

        write_whole(arguments.output, text)
    return _errors_found(topology, said=form == "check") if arguments.check else 0


def _told(arguments: argparse.Namespace) -> Topology:
    """The topology that the arguments name."""
    if arguments.sysfs_root is not None:
        from pathlib import Path

        from ..topo.probe.join import probe_local

        return probe_local(Path(arguments.sysfs_root))
    if arguments.topology == "local" and _is_launched() and not arguments.measure:
        from ..runtime.ranks.places import join_ranks

        return join_ranks()
    from ..topo.resolve import resolve

    return resolve(arguments.topology)


def _measured(arguments: argparse.Namespace) -> Topology:
    """The topology with what was measured on it; without one, that of the hosts that the ranks are on."""
    from ..runtime.measuring.measure_links import measure_topology

    return measure_topology(
        None if arguments.topology == "local" and arguments.sysfs_root is None else _told(arguments)
    )


def _written(topology: Topology, form: str, colour: bool, for_vm: bool) -> str:
    """The topology in one of FORMATS (or what --check says); each writer is imported when it is asked for."""
    if form == "json":
        from ..topo.formats import judged

        return judged.write(topology)
    if form == "check":
        from ..topo.doctor import examine, report

        return "\n".join(report(examine(topology))) + "\n"
    if form == "nccl-xml":
        from ..topo.formats import nccl_xml

        text = nccl_xml.write(topology, for_vm)
        for note in nccl_xml.for_vm_notes(topology) if for_vm else ():
            print(f"{PROG}: {note}", file=sys.stderr)
        return text
    if form == "dot":
        from ..topo.pictures import dot

        return dot.write(topology)
    if form == "svg":
        from ..topo.pictures import svg

        return svg.write(topology)
    if form == "smi":
        from ..topo.formats import smi

        return smi.write(topology)
    if form == "tree":
        from ..topo.pictures import text_tree as tree

        return tree.write(topology, colour)
    from ..topo.pictures import table

    return table.write(topology, colour)


def _errors_found(topology: Topology, said: bool) -> int:
    """Exit code 1 where the doctor finds errors; a line on standard error for each that was not `said`."""
    from ..topo.doctor import examine

    errors = [finding for finding in examine(topology).findings if finding.severity == "error"]
    for finding in errors if not said else ():
        print(f"{PROG}: {finding.message}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
