"""Read whether the IOMMU translates the addresses that devices use, or not (off, passthrough)."""

from __future__ import annotations

from pathlib import Path

from ...facts import Fact, keys
from ...facts.keys import HOST
from .files import list_folder, read_fact, show_path
from .sysfs import list_gpus_and_nics

_BY_TYPE = {"DMA": "translating", "DMA-FQ": "translating", "identity": "passthrough"}
_OFF = ("iommu=off", "intel_iommu=off", "amd_iommu=off")
_PASSTHROUGH = ("iommu=pt", "iommu.passthrough=1", "iommu.passthrough=y", "iommu.passthrough=on")
_TRANSLATING = (
    "intel_iommu=on",
    "amd_iommu=on",
    "iommu=force",
    "iommu=nopt",
    "iommu.passthrough=0",
)


def read_iommu(root: Path) -> Fact:
    """Return the fact `host iommu`: `off`, `passthrough` or `translating`.

    1. The types of `/sys/kernel/iommu_groups/*/type` decide: DMA and DMA-FQ translate, identity passes through. Groups
       of GPUs and NICs are read where there are any, all groups otherwise; one that translates is enough. The command
       line is then ignored: the kernel may decide otherwise.
    2. Groups are listed without a type (by old kernels): the command line decides, and an `off` in it is not
       believed.
    3. No group, and no IOMMU in `/sys/class/iommu`: off.
    4. No group, but an IOMMU, or no `/sys` to look into: the command line decides.

    On the command line off wins over pt, and pt over on, as in `intel_iommu=on iommu=pt`.
    """
    folder = root / "sys/kernel/iommu_groups"
    groups = {path.name: path for path in list_folder(folder)}
    types = {
        name: read_fact(root, path / "type", HOST, keys.HOST_IOMMU) for name, path in groups.items()
    }
    known = {
        name: _BY_TYPE[str(fact.value)] for name, fact in types.items() if fact.value in _BY_TYPE
    }
    asked = [known[name] for name in _list_groups(root) if name in known] or list(known.values())
    if asked:
        value = "translating" if "translating" in asked else "passthrough"
        return Fact(HOST, keys.HOST_IOMMU, value, f"{show_path(root, folder)}/*/type")
    if not groups and folder.parent.is_dir() and not list_folder(root / "sys/class/iommu"):
        return Fact(HOST, keys.HOST_IOMMU, "off", f"{show_path(root, folder)}: there are no groups")
    return _read_command_line(root, believe_off=not groups)


def _list_groups(root: Path) -> set[str]:
    """Return the names of the groups that have a GPU or a NIC, by the `iommu_group` links of the
    devices.
    """
    names: set[str] = set()
    for path in list_gpus_and_nics(root):
        group = path / "iommu_group"
        if group.is_symlink():
            names.add(group.readlink().name)
    return names


def _read_command_line(root: Path, believe_off: bool) -> Fact:
    fact = read_fact(root, root / "proc/cmdline", HOST, keys.HOST_IOMMU)
    if fact.value is None:
        return fact
    words = {part for word in str(fact.value).split() for part in _split_settings(word)}
    answers = (("passthrough", _PASSTHROUGH), ("translating", _TRANSLATING))
    for value, signs in ((("off", _OFF),) if believe_off else ()) + answers:
        if words.intersection(signs):
            return Fact(HOST, keys.HOST_IOMMU, value, fact.source)
    return Fact(
        HOST,
        keys.HOST_IOMMU,
        None,
        fact.source,
        "neither the groups nor the command line say what the IOMMU does",
    )


def _split_settings(word: str) -> list[str]:
    """Return the settings of a word such as `intel_iommu=on,sm_on`, each with its name."""
    name, equals, values = word.partition("=")
    return [f"{name}{equals}{value}" for value in values.split(",")]
