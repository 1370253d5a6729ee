"""Hold torch's store on the head node of an emulated machine, as torchrun's agent would.

rendezvous.py ADDRESS PORT  runs until it is killed.
"""

import sys
import threading
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore


def main() -> None:
    """Serve torch's TCPStore at the address and port of the command line, until killed."""
    address, port = sys.argv[1], int(sys.argv[2])
    store = TCPStore(
        address, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    threading.Event().wait()
    del store  # not before: it serves as long as it exists


if __name__ == "__main__":
    main()
