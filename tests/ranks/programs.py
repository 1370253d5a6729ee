"""A whole program as ranks that torchrun would have started: it joins the others by itself."""

from __future__ import annotations

import contextlib
import io
import os
import runpy

import torch.distributed as dist
from rank_process import Events
from torch._C._distributed_c10d import TCPStore


def run_program(path: str) -> str:
    """Run a Python file and return what it prints."""
    dist.destroy_process_group()
    store = Events().store
    # As torchrun does, a server that is no rank: so its port is free for certain.
    server = (
        TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        if os.environ["RANK"] == "0"
        else None
    )
    if server is not None:
        store.set("port", str(server.port))
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": store.get("port").decode(),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()
