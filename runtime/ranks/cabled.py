"""The cabling of this launch's hosts, if cables join them pairwise instead of one network.

A launch is all ranks started together. An extra (group `networks` of extras.py) sets the cabling
before groups are made. gloo's own connections then go through relays, which pass on bytes from host
to host along the cables; messages of plans have connections of their own over the cables. Links
carry messages of plans, Faults (faults.py) keep deadlines and find who is to blame.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from torch._C._distributed_c10d import Store

from ...extras import NETWORKS, Names

if TYPE_CHECKING:  # groups and links import this module
    import torch

    from ...topo.graph import Topology
    from .faults import Faults
    from .links import Links


# The environment variable by which cables are not looked for ("off").
FABRIC = "TOPOPLAN_FABRIC"


class LaunchNetwork(Protocol):
    """What an extra does before the groups of a launch on several hosts are made.

    `store` is one that all `ranks` ranks reach; `rank` is this one; `timeout` limits waits.
    """

    def join(self, store: Store, rank: int, ranks: int, timeout: timedelta) -> None:
        """Find out how the hosts are joined, and set the cabling if groups need one.

        Collective over all `ranks` ranks of the launch, which meet in `store`, once; later calls
        return at once.
        """

    def init_gloo(self, rank: int, ranks: int, timeout: timedelta) -> None:
        """Join the launch, and make torch's default group over gloo on what was found.

        Collective.
        """


class LaunchCabling(Protocol):
    """The cables between the hosts of this launch, and gloo over them."""

    topology: Topology
    """The hosts, joined by their cables."""

    def make_gloo(self, place: Any, store: Store) -> Any:
        """Return a gloo backend for a group of ranks, of which some are on other hosts.

        `place` is torch's DistributedBackendOptions; the ranks meet in `store`.
        """

    def find_messages(self, gloo: Any) -> Any | None:
        """Return the object that sends a gloo backend's messages over cables; None if gloo does.

        It has gloo's `send` and `recv`.
        """

    def connect(self, group: Any, device: torch.device, faults: Faults) -> Links | None:
        """Return links over cables for a group's messages, None if its gloo sends everything.

        `device` is that of tensors, `faults` finds the rank to blame for a failure.
        """

    def reach(self, host: str, port: int) -> None:
        """Make another rank's listening address (`host`, TCP `port`) reachable from here."""

    @property
    def address(self) -> str:
        """The address at which this rank listens, for ranks on other hosts."""

    def try_cables(self, timeout_s: float) -> list[tuple[str, str, bool]]:
        """Try whether this host's cables carry anything, for `timeout_s` seconds at most.

        Return for each its port here, the port at the other end, and whether it answers.
        """

    def check_mpi(self, mpi: str) -> None:
        """Raise InputError if the MPI with this name and version cannot send over these cables."""


_cabling: LaunchCabling | None = None


def may_be_cabled() -> bool:
    """Return whether this process is one of a launch on several hosts, which cables may join.

    False if the user says that they do not: TOPOPLAN_FABRIC is "off", or GLOO_SOCKET_IFNAME, the
    interface of a network, is set.
    """
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
    if os.environ.get(FABRIC) == "off" or not all(name in os.environ for name in names):
        return False
    ranks, on_host = (int(os.environ[name]) for name in names)
    return on_host < ranks and not os.environ.get("GLOO_SOCKET_IFNAME")


def find_networks() -> list[LaunchNetwork]:
    """Return what extras do before groups are made; empty unless cables may join the hosts."""
    added = Names(NETWORKS)
    return [added.find(name) for name in added.describe()] if may_be_cabled() else []


def set_cabling(cabling: LaunchCabling | None) -> None:
    """Let groups that are made from now on use these cables; None: one network joins all hosts."""
    global _cabling
    _cabling = cabling


def find_cabling() -> LaunchCabling | None:
    """Return the cabling of the launch, or None if a network joins its hosts."""
    return _cabling
