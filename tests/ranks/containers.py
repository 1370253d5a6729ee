"""Training as a container's user: HOME is somebody else's, or there is neither HOME nor a passwd
entry.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
from rank_process import MEETING

import topoplan
from ranks.topo_backend import end, start
from topoplan.cli import run
from topoplan.runtime.ranks.launch import RENDEZVOUS

# A number that no passwd entry has.
USER = 54321
_numbers = count()


def without_cache(path: str) -> list[list[str]]:
    """Use backend, hook and topo-run as another user, who cannot enter HOME, and then as one who
    has none, if this is root; return what each warns of.
    """
    folder = Path(os.environ[MEETING]).parent
    folder.chmod(0o777)  # the ranks' files of a meeting
    home = folder / f"home{dist.get_rank()}"
    home.mkdir()
    plan = Path(shutil.copy(path, folder / f"plan{dist.get_rank()}.json"))
    # First as who started the test: others may not enter the folder of Python's own modules.
    use_all(plan, folder)
    gc.collect()
    for store in folder.glob("meeting*"):
        # FileStore writes to them when it is destroyed, which may be later; another rank's may be
        # destroyed right now.
        with suppress(FileNotFoundError):
            store.chmod(0o666)
    home.chmod(0)
    found = []
    for given in [home, None] if os.getuid() == 0 else [home]:
        with as_another_user(given), warnings() as messages:
            use_all(plan, folder)
        found.append(messages)
    home.chmod(0o700)
    return found


def use_all(plan: Path, folder: Path) -> None:
    """Reduce by the backend (which synthesizes a plan), by the hook's communicator and in
    topo-run.
    """
    start(plans="ring:2", choose="race")
    hook = topoplan.ddp_hook(plan).communicator
    for reduce in (dist.all_reduce, hook.allreduce):
        x = torch.ones(5000)
        reduce(x)
        assert (x == 2).all()
    end()
    os.environ[RENDEZVOUS] = str(folder / f"meeting-of-topo-run{next(_numbers)}")
    assert run.main([str(plan), "-b", "4K", "-e", "4K", "-n", "1", "-w", "1"]) == 0


@contextmanager
def as_another_user(home: Path | None) -> Iterator[None]:
    """Be USER if this is root, with that HOME and no other variable that names a cache folder."""
    before = dict(os.environ)
    for name in ("HOME", "XDG_CACHE_HOME", "TOPOPLAN_CACHE"):
        os.environ.pop(name, None)
    if home is not None:
        os.environ["HOME"] = str(home)
    is_root = os.getuid() == 0
    groups = os.getgroups()
    if is_root:
        os.setgroups([])
        os.setresgid(USER, USER, 0)
        os.setresuid(USER, USER, 0)
    try:
        yield
    finally:
        if is_root:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
            os.setgroups(groups)
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def warnings() -> Iterator[list[str]]:
    """Collect topoplan's warnings."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    collector, log = Collector(logging.WARNING), logging.getLogger("topoplan")
    log.addHandler(collector)
    try:
        yield messages
    finally:
        log.removeHandler(collector)
