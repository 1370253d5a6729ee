"""Open a captured machine: a folder, or an archive of one, with its `/sys` and `/proc`."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from ...extras import ARCHIVES, Names
from ..errors import InputError

# Limits on the entries of the folders that the probe reads: chosen, far above those of the
# recorded machines.
MAX_ENTRIES: Mapping[str, int] = {
    "sys/bus/pci/devices": 20_000,
    "sys/class/net": 20_000,
    "sys/class/infiniband": 20_000,
    "sys/devices/system/node": 512,
    "sys/kernel/iommu_groups": 20_000,
    "proc/driver/nvidia/gpus": 1_000,
}


@contextmanager
def open_capture(path: Path) -> Iterator[Path]:
    """Yield the folder that contains the captured machine's `sys` or `proc`.

    It is `path` or a folder in it. An archive is unpacked into a temporary folder, which is removed
    at the end. Raise InputError if there is neither, if a folder in it has more entries than
    MAX_ENTRIES, or if the archive is broken, too large, or nothing here unpacks archives.
    """
    if path.is_dir():
        yield _find_root(path, path)
        return
    if not path.is_file():
        raise InputError(
            f"{path}: no such folder or archive; expected a copy of a machine's /sys and /proc"
        )
    with tempfile.TemporaryDirectory(prefix="topoplan-") as folder:
        Names(ARCHIVES).find("tar")(path, Path(folder))
        yield _find_root(path, Path(folder))


def _find_root(path: Path, folder: Path) -> Path:
    for candidate in (folder, *sorted(p for p in folder.iterdir() if p.is_dir())):
        if (candidate / "sys").is_dir() or (candidate / "proc").is_dir():
            for name, most in MAX_ENTRIES.items():
                if _has_more(candidate / name, most):
                    raise InputError(
                        f"{path}: more than {most} entries in {name}; no machine has as many"
                    )
            return candidate
    raise InputError(
        f"{path}: no captured machine; expected a folder 'sys' in it (a copy of /sys), and 'proc'"
    )


def _has_more(folder: Path, most: int) -> bool:
    with suppress(OSError), os.scandir(folder) as entries:
        return next(islice(entries, most, None), None) is not None
    return False  # absent or unreadable: nothing in it will be read either
