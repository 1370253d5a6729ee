"""The folder of cached plans and races, and the warning if nothing can be cached there."""

import logging
import os
from pathlib import Path

from platformdirs import user_cache_path

log = logging.getLogger("topoplan")

# Environment variable: the cache folder.
VARIABLE = "TOPOPLAN_CACHE"
# Folders of which this process has warned: it reads the cache at every new size.
_warned: set[Path | None] = set()


def find_cache_folder(named: str | Path | None = None) -> Path | None:
    """Return the folder for plans and races, or None if the home directory is not known.

    It is `named`, else TOPOPLAN_CACHE, else topoplan in the user's cache folder.
    """
    folder = named or os.environ.get(VARIABLE)
    try:
        return Path(folder or user_cache_path("topoplan", appauthor=False)).expanduser()
    except RuntimeError:  # no HOME and no passwd entry, as for `docker run --user 1234`
        return None


def warn_without_cache(
    folder: Path | None, reason: str = "no home directory is known (no HOME, no passwd entry)"
) -> None:
    """Warn that a cache folder cannot be used, once per process and folder: training goes on.

    `folder` is None if `find_cache_folder` found none.
    """
    if folder in _warned:
        return
    _warned.add(folder)
    where = "no cache folder" if folder is None else f"cache folder {folder}"
    log.warning(
        "%s: %s; plans and races are not cached, so the next start does it again; "
        "set %s to a folder that this user can write to",
        where,
        reason,
        VARIABLE,
    )


def describe_problem(error: Exception) -> str:
    """Describe an error with the folder or a file in it, without errno and path."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
