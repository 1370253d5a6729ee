"""topo-probe: show a machine's topology, to people and programs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .common import Parser, file_name, run_command

if TYPE_CHECKING:
    import argparse

    from ..topo.graph import Topology

PROG = "topo-probe"
FORMATS = ("table", "json", "tree", "smi", "nccl-xml", "dot", "svg")

DESCRIPTION = """\
examples:
  topo-probe                                   this machine, as tables
  topo-probe --check                           find what is wrong with it, with advice; exit code 1 on errors
  topo-probe --json -o machine.json            this machine as a file that topo-synth reads
  topo-probe matrix.txt --format svg -o m.svg  a picture of a machine from its nvidia-smi topo -m
  topo-probe --for-vm -o topo.xml              a file for NCCL_TOPO_FILE, inside a virtual machine
  topo-probe dgx-a100:2 --format tree          a preset, as a tree
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint ... -m topoplan.cli.probe --json
                                               several hosts, each probed by its own ranks, as one topology
  torchrun --nproc-per-node 8 -m topoplan.cli.probe --measure -o machine.json
                                               measure every link, alone and together with others, and correct rates

Shows a machine's GPUs, CPUs, NICs and switches, and the links between them. What cannot be found out is named in a
note, and everything else is shown. Bandwidths are in GB/s (1e9 bytes a second), in one direction.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code (0 done, 1 failed or errors found, 2 usage, 130 interrupted)."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.for_vm and arguments.format not in (None, "nccl-xml"):
        parser.error("--for-vm writes nccl-xml; leave --format out")
    if arguments.sysfs_root is not None and arguments.topology != "local":
        parser.error("--sysfs-root says where the local machine's files are; leave TOPOLOGY out")
    return run_command(PROG, lambda: _probe(arguments), quiet=_is_launched() and not _is_rank_0())


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
        "-o", "--output", type=file_name, metavar="FILE", help="write to FILE, whole or not at all, instead of printing"
    )
    parser.add_argument(
        "--check", action="store_true", help="list what is wrong: severity, evidence, advice; exit code 1 on errors"
    )
    parser.add_argument(
        "--for-vm",
        action="store_true",
        help="write NCCL XML for use inside a VM: the VM's addresses, plausible link speeds",
    )
    parser.add_argument(
        "--box",
        metavar="BOX",
        help="what each host is, of files that only say where hosts are: a preset such as dgx-h100, or a file",
    )
    parser.add_argument("--sysfs-root", metavar="DIR", help="read /sys and /proc below DIR (a folder or a tar archive)")
    parser.add_argument(
        "--measure", action="store_true", help="under torchrun: measure the links by sending, one rank a GPU"
    )
    return parser


def _is_launched() -> bool:
    """Return whether this process is one of several ranks, as torchrun starts them; rank 0 reports for all."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _is_rank_0() -> bool:
    return os.environ["RANK"] == "0"


def _probe(arguments: argparse.Namespace) -> int:
    topology = _measure(arguments) if arguments.measure else _named_topology(arguments)
    if _is_launched() and not _is_rank_0():
        return 0
    to_terminal = arguments.output is None and sys.stdout.isatty()
    form = "nccl-xml" if arguments.for_vm else arguments.format or ("check" if arguments.check else "table")
    text = _render(topology, form, to_terminal, arguments.for_vm)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        from ..topo.files import write_whole

        write_whole(arguments.output, text)
    return _report_errors(topology, printed=form == "check") if arguments.check else 0


def _named_topology(arguments: argparse.Namespace) -> Topology:
    """Return the topology that the arguments name, or that of the hosts that the ranks are on."""
    if arguments.sysfs_root is not None:
        from pathlib import Path

        from ..topo.probe.join import probe_local

        return probe_local(Path(arguments.sysfs_root))
    if arguments.topology == "local" and _is_launched() and not arguments.measure:
        from ..runtime.ranks.places import join_ranks

        return join_ranks()
    from ..topo.resolve import resolve

    return resolve(arguments.topology, arguments.box)


def _measure(arguments: argparse.Namespace) -> Topology:
    """Return the named topology, or that of the hosts that the ranks are on, with measured rates."""
    from ..runtime.measuring.measure_links import measure_topology

    return measure_topology(
        None if arguments.topology == "local" and arguments.sysfs_root is None else _named_topology(arguments)
    )


def _render(topology: Topology, form: str, colour: bool, for_vm: bool) -> str:
    """Return the topology in one of FORMATS, or the findings of --check; each writer is only imported when it is used."""
    if form == "json":
        from ..topo.formats import probe_json

        return probe_json.write(topology)
    if form == "check":
        from ..topo.doctor import examine, report

        return "\n".join(report(examine(topology))) + "\n"
    if form == "nccl-xml":
        from ..topo.formats import nccl_xml

        text = nccl_xml.write(topology, for_vm)
        for note in nccl_xml.list_vm_notes(topology) if for_vm else ():
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


def _report_errors(topology: Topology, printed: bool) -> int:
    """Return exit code 1 where there are errors, 0 otherwise; print each on standard error unless the table did."""
    from ..topo.doctor import examine

    errors = [finding for finding in examine(topology).findings if finding.severity == "error"]
    for finding in errors if not printed else ():
        print(f"{PROG}: {finding.message}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
