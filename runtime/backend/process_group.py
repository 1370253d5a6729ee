"""The c10d backend "topo": the process group that torch gets, the core's with what extras add."""

from ...extras import PROCESS_GROUPS, Names
from .collectives import CollectiveGroup
from .torch_tools import leave_untraced

_added = Names(PROCESS_GROUPS)
_bases = tuple(_added.find(name) for name in _added.describe())


@leave_untraced
class TopoGroup(*_bases, CollectiveGroup):  # type: ignore[misc]
    """The process group that torch gets for the backend "topo", on one rank.

    It runs collectives by plans, else by gloo or NCCL. Its bases are the core's class and those of
    extras, each of which changes some of the methods.
    """
