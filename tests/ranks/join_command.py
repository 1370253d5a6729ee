"""A command that joins the hosts of the ranks that it is started as, and prints the topology.

Its host is called as the variable HOST_NAME says.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Sequence

import patience

from topoplan.runtime.extras.meeting import join_ranks

HOST_NAME = "HOST_NAME_OF_TEST"
# CLONE_NEWUTS, of Linux's sched.h.
_HOST_NAMES = 0x04000000


def main(arguments: Sequence[str]) -> int:
    """Give the host a name that this process alone sees, join the ranks, and print."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_HOST_NAMES):
        raise OSError(ctypes.get_errno(), "no host name of its own for a process")
    socket.sethostname(os.environ[HOST_NAME])
    print(join_ranks(patience.seconds(40)).dumps())
    return 0
