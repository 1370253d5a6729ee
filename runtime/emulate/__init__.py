"""A machine rebuilt out of network namespaces with rate-limited links; ranks run inside, over real sockets."""

from .blueprint import Blueprint, blueprint, parse_rate
from .network import EmulationUnavailable, Network, emulate, why_not
from .ranks import start_rank

__all__ = ["Blueprint", "EmulationUnavailable", "Network", "blueprint", "emulate", "parse_rate", "start_rank", "why_not"]
