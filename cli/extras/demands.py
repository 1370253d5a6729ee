"""topo-synth --traffic and --demands: what to plan for, from a file.

Demands are pieces of data, with the ranks that hold each one and those that need it. --traffic
reads a matrix of the bytes from rank to rank (an alltoallv), --demands a list of pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..synthesis.added import FileRequest

if TYPE_CHECKING:
    import argparse

    from ...synth.ir.demands import Demands
    from ...topo.graph import Topology


def _read_traffic(args: argparse.Namespace, topology: Topology) -> tuple[Demands, None]:
    """Return the alltoallv of a matrix, between all GPUs or those of --group."""
    from ...synth.extras.demands.reading import from_matrix
    from ...synth.groups.ranks import group_on, parse_ranks

    listed = None if args.group is None else parse_ranks(args.group, "group")
    members = () if listed is None else group_on("alltoall", topology, listed).members
    return from_matrix(args.traffic, len(topology.ranks), members), None


def _read_demands(
    args: argparse.Namespace, topology: Topology
) -> tuple[Demands, tuple[int, ...] | None]:
    """Return the demands of a file, and its helpers, unless --helpers has others."""
    from ...synth.extras.demands.reading import read_demands
    from ...synth.groups.ranks import choose_helpers

    demands, wanted = read_demands(args.demands, len(topology.ranks))
    return demands, choose_helpers(wanted, demands, topology) if args.helpers is None else None


TRAFFIC = FileRequest("alltoallv", True, _read_traffic)
DEMANDS = FileRequest("reshard", False, _read_demands)
