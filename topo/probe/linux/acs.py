"""Access Control Services: whether a PCI Express port sends traffic between two devices up to the
root complex.

What is switched on stands in the ACS extended capability of a function's configuration space, which
only root may read beyond its first 64 bytes (PCI Express base specification, 7.7.11; bits as in
Linux's pci_regs.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...facts import Fact, keys
from ...facts.keys import pci_subject
from .files import read_start, show_path
from .sysfs import list_bridges, list_gpus_and_nics

# Names of the bits of the ACS control register, from bit 0.
CONTROLS = (
    "source validation",
    "translation blocking",
    "request redirect",
    "completion redirect",
    "upstream forwarding",
    "egress control",
    "direct translated",
)

_ACS = 0x000D
_CONTROL = 6
_HEADER = 4
_FIRST, _END = 0x100, 0x1000
_UNPRIVILEGED = 64


def read_acs(root: Path) -> Iterator[Fact]:
    """Yield the fact `pci/BUS acs` of every GPU and NIC and of every bridge above one."""
    functions: dict[str, Path] = {}
    for path in list_gpus_and_nics(root):
        functions |= {function.name: function for function in (*list_bridges(path), path)}
    for name, path in functions.items():
        yield _read_function(root, path / "config", pci_subject(name))


def find_acs_control(config: bytes) -> int | None:
    """Return the ACS control register of a configuration space, None where it has no such
    capability.

    Raises ValueError where the space is incomplete or its list of capabilities is broken.
    """
    if len(config) <= _UNPRIVILEGED:
        raise ValueError(f"only root may read it: the file has {len(config)} bytes")
    if len(config) < _FIRST + _HEADER:
        raise ValueError(f"no extended configuration space: the file has {len(config)} bytes")
    seen: set[int] = set()
    offset = _FIRST
    while offset:
        if offset in seen:
            raise ValueError(f"its list of capabilities comes back to {offset:#x}")
        if offset < _FIRST or offset + _HEADER > len(config):
            raise ValueError(
                f"its list of capabilities leads to {offset:#x}, outside of its {len(config)} bytes"
            )
        seen.add(offset)
        header = int.from_bytes(config[offset : offset + _HEADER], "little")
        if header == 0xFFFF_FFFF:
            raise ValueError("the function does not answer: its capabilities read as ones")
        if header & 0xFFFF == _ACS:
            register = config[offset + _CONTROL : offset + _CONTROL + 2]
            if len(register) < 2:
                raise ValueError(
                    f"its ACS capability at {offset:#x} is cut off: the file has {len(config)} "
                    "bytes"
                )
            return int.from_bytes(register, "little")
        offset = header >> 20 & ~3
    return None


def _read_function(root: Path, path: Path, subject: str) -> Fact:
    source = show_path(root, path)
    try:
        control = find_acs_control(read_start(path, _END))
    except OSError as error:
        return Fact(subject, keys.PCI_ACS, None, source, error.strerror or str(error))
    except ValueError as error:
        return Fact(subject, keys.PCI_ACS, None, source, str(error))
    if control is None:
        return Fact(subject, keys.PCI_ACS, "off", f"{source}: the function has no ACS")
    on = [name for bit, name in enumerate(CONTROLS) if control >> bit & 1]
    if rest := control >> len(CONTROLS) << len(CONTROLS):
        on.append(f"other controls {rest:#x}")
    return Fact(subject, keys.PCI_ACS, ", ".join(on) or "off", source)
