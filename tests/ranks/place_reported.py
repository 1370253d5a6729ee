"""A rank that torchrun starts: writes who it is, on which host and with which GPUs, and knows
nothing of topoplan.
"""

import fcntl
import json
import os
import socket
import struct
import sys
from pathlib import Path

# SIOCGIFADDR, of Linux's sockios.h.
_ASK_ADDRESS = 0x8915


def find_address(interface: str) -> str:
    """Return the address of this host, which a network namespace is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking.fileno(), _ASK_ADDRESS, struct.pack("256s", interface.encode()))
    return socket.inet_ntoa(answer[20:24])


def main(folder: str, interface: str) -> None:
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    gpus = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    told = {
        "rank": rank,
        "host": find_address(interface),
        "local_rank": local_rank,
        "gpu": int(gpus[local_rank]),
        "world": int(os.environ["WORLD_SIZE"]),
        "counted": os.environ["CUDA_DEVICE_ORDER"],
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
