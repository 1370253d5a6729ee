"""Emulate a machine with network namespaces and rate-limited links, for ranks that use sockets."""

from .blueprint import Blueprint, blueprint, parse_rate
from .mpi import why_not_mpi
from .network import EmulationError, Network, emulate, why_not
from .ranks import start_rank

__all__ = [
    "Blueprint",
    "EmulationError",
    "Network",
    "blueprint",
    "emulate",
    "parse_rate",
    "start_rank",
    "why_not",
    "why_not_mpi",
]
