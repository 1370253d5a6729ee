"""What the IOMMU does to the addresses that devices use: nothing (off, passthrough), or it translates them."""

from __future__ import annotations

from pathlib import Path

from ...facts import Fact
from .files import list_folder, read_fact, shown_path
from .sysfs import gpus_and_nics

SUBJECT, KEY = "host", "iommu"

_BY_TYPE = {"DMA": "translating", "DMA-FQ": "translating", "identity": "passthrough"}
_OFF = ("iommu=off", "intel_iommu=off", "amd_iommu=off")
_PASSTHROUGH = ("iommu=pt", "iommu.passthrough=1", "iommu.passthrough=y", "iommu.passthrough=on")
_TRANSLATING = ("intel_iommu=on", "amd_iommu=on", "iommu=force", "iommu=nopt", "iommu.passthrough=0")


def read_iommu(root: Path) -> Fact:
    """The fact `host iommu`: `off`, `passthrough` or `translating`.

    1. The types of `/sys/kernel/iommu_groups/*/type` decide: DMA and DMA-FQ translate, identity passes through. Groups
       of GPUs and NICs are asked where there are any, all groups otherwise; one that translates is enough. What the
       command line says counts for nothing then: the kernel has its reasons to do otherwise.
    2. Groups are listed without a type (by old kernels): the command line decides, and an `off` in it is not
       believed.
    3. No group, and no IOMMU in `/sys/class/iommu`: off.
    4. No group, but an IOMMU, or no `/sys` to look into: the command line decides.

    On the command line off wins over pt, and pt over on, as in `intel_iommu=on iommu=pt`.
    """
    folder = root / "sys/kernel/iommu_groups"
    groups = {path.name: path for path in list_folder(folder)}
    types = {name: read_fact(root, path / "type", SUBJECT, KEY) for name, path in groups.items()}
    known = {name: _BY_TYPE[str(fact.value)] for name, fact in types.items() if fact.value in _BY_TYPE}
    asked = [known[name] for name in _groups_of_gpus_and_nics(root) if name in known] or list(known.values())
    if asked:
        value = "translating" if "translating" in asked else "passthrough"
        return Fact(SUBJECT, KEY, value, f"{shown_path(root, folder)}/*/type")
    if not groups and folder.parent.is_dir() and not list_folder(root / "sys/class/iommu"):
        return Fact(SUBJECT, KEY, "off", f"{shown_path(root, folder)}: there are no groups")
    return _read_command_line(root, believe_off=not groups)


def _groups_of_gpus_and_nics(root: Path) -> set[str]:
    """Names of the groups that hold a GPU or a NIC, by the `iommu_group` links of the devices."""
    names: set[str] = set()
    for path in gpus_and_nics(root):
        group = path / "iommu_group"
        if group.is_symlink():
            names.add(group.readlink().name)
    return names


def _read_command_line(root: Path, believe_off: bool) -> Fact:
    fact = read_fact(root, root / "proc/cmdline", SUBJECT, KEY)
    if fact.value is None:
        return fact
    words = {part for word in str(fact.value).split() for part in _parts(word)}
    answers = (("passthrough", _PASSTHROUGH), ("translating", _TRANSLATING))
    for value, signs in ((("off", _OFF),) if believe_off else ()) + answers:
        if words.intersection(signs):
            return Fact(SUBJECT, KEY, value, fact.source)
    return Fact(SUBJECT, KEY, None, fact.source, "neither the groups nor the command line say what the IOMMU does")


def _parts(word: str) -> list[str]:
    """The settings of a word such as `intel_iommu=on,sm_on`, each with its name."""
    name, equals, values = word.partition("=")
    return [f"{name}{equals}{value}" for value in values.split(",")]
