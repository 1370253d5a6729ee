"""The folder of cached plans and races, where it cannot be used."""

import logging
from pathlib import Path

from ...environment import CACHE

log = logging.getLogger("topoplan")

# Folders of which this process has warned: it reads the cache at every new size.
_warned: set[Path | None] = set()


def warn_without_cache(folder: Path | None, error: Exception | None = None) -> None:
    """Warn that a cache folder cannot be used, once per process and folder: training goes on.

    `folder` is None if `environment.find_cache_folder` found none.
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
