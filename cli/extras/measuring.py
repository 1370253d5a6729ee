"""topo-probe --measure: the named topology, or that of the ranks' hosts, with measured rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..probe import name_topology

if TYPE_CHECKING:
    import argparse

    from ...topo.graph import Topology
    from ..shared.progress import ProgressReporter


def measure(arguments: argparse.Namespace, progress: ProgressReporter) -> Topology:
    """Return the named topology, or that of the ranks' hosts, with measured rates.

    All ranks that a launcher started must call it: they measure the links between them.
    """
    from ...runtime.extras.measuring.measure_links import measure_topology

    at_hand = arguments.topologies in ([], ["local"]) and arguments.sysfs_root is None
    named = None if at_hand else name_topology(arguments)
    with progress.follow("measuring ...") as work:
        return measure_topology(named, advance=work.advance)
