"""Infer how hosts are joined, by cables or switches, from messages between their network ports.

A segment is a cable or a switched network between ports that reach each other directly; a bundle is
the segments through the same connectors.
"""

from .facts import FabricFacts, Flow, Hello, HostFacts, PortAnswer, PortFacts
from .faults import CableFault, find_faults
from .segments import (
    PortKey,
    Segment,
    SegmentBundle,
    find_bundles,
    find_segments,
    list_data_segments,
)
from .topology import describe_hosts, make_topology

__all__ = [
    "CableFault",
    "FabricFacts",
    "Flow",
    "Hello",
    "HostFacts",
    "PortAnswer",
    "PortFacts",
    "PortKey",
    "Segment",
    "SegmentBundle",
    "describe_hosts",
    "find_bundles",
    "find_faults",
    "find_segments",
    "list_data_segments",
    "make_topology",
]
