"""Warn about a cache folder that cannot be used."""

import logging
from pathlib import Path

from ...environment import CACHE

log = logging.getLogger("topoplan")

# Folders of which this process has warned: it reads the cache at every new size.
_warned: set[Path | None] = set()


def warn_without_cache(folder: Path | None, error: Exception | None = None) -> None:
    """Log that plans will not be cached, once per process and folder; the job goes on.

    `folder` is None if no folder for caches was found; `error` is why it cannot be used.
    """
    if folder in _warned:
        return
    _warned.add(folder)
    reason = getattr(error, "strerror", None) or error  # without errno and path
    log.warning(
        "%s: %s; plans and races are not cached, so the next start does it again; "
        "set %s to a folder that this user can write to",
        "no cache folder" if folder is None else f"cache folder {folder}",
        reason or "no home directory is known (no HOME, no passwd entry)",
        CACHE,
    )
