"""Print the ranks that this one cannot connect to, in a rank's namespace, without dependencies.

reach.py RANK ADDRESS...  prints a JSON list of rank numbers.
"""

import json
import select
import socket
import sys
import time

PORT = 29399  # any free one: each rank has a namespace of its own
PATIENCE_S = 15.0  # until a silent rank counts as unreachable, on a busy host


def main() -> None:
    """Connect to every other rank and answer them, until all are heard of or PATIENCE_S is over."""
    rank, addresses = int(sys.argv[1]), sys.argv[2:]
    ends = time.monotonic() + PATIENCE_S
    server = socket.create_server((addresses[rank], PORT), backlog=len(addresses))
    server.setblocking(False)
    to_reach = {other for other in range(len(addresses)) if other != rank}
    to_hear = set(to_reach)
    while (to_reach or to_hear) and time.monotonic() < ends:
        for other in sorted(to_reach):
            try:
                with socket.create_connection(
                    (addresses[other], PORT), 0.2, (addresses[rank], 0)
                ) as connection:
                    connection.sendall(bytes([rank]))
                to_reach.discard(other)
            except OSError:
                continue
            _answer(server, to_hear, 0)
        _answer(server, to_hear, 0.05)
    print(json.dumps(sorted(to_reach | to_hear)))


def _answer(server: socket.socket, to_hear: set[int], wait_s: float) -> None:
    while select.select([server], [], [], wait_s)[0]:
        with server.accept()[0] as connection:
            connection.settimeout(1.0)
            to_hear.difference_update(connection.recv(1))
        wait_s = 0


if __name__ == "__main__":
    main()
