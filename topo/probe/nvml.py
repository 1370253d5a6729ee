"""What NVML (the NVIDIA driver's library) says of the GPUs: identity, PCIe link, and NVLinks one by one.

Indices are NVML's own and ignore CUDA_VISIBLE_DEVICES; match GPUs by bus id or UUID. A link counts only once its state
says active: some GPUs answer capability for links that do not exist. Active indices need not be contiguous, and an
active link says nothing of which GPUs it reaches; the remote end is asked link by link.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from ..facts import Fact, Facts, Value, ask

SUBJECT = "nvml"
REMOTE_KINDS = {0: "gpu", 1: "cpu", 2: "switch"}
"""What is at the other end of an NVLink, by NVML's nvmlIntNvLinkDeviceType_t; 255 is unknown."""

_MAX_LINKS = 18
_NODE_SCOPE = 0
_NODE_WORDS = 16


def read_nvml() -> Facts:
    """Facts about every GPU that the driver lists; one missing fact where there is no library or no driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return Facts((Fact(SUBJECT, "library", None, "pynvml", "the Python package nvidia-ml-py is not installed"),))
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError, OSError, AttributeError) as error:
        return Facts((Fact(SUBJECT, "library", None, "nvmlInit", str(error)),))
    facts = tuple(_read_driver(nvml))
    return Facts((*facts, ask(SUBJECT, "shutdown", "nvmlShutdown", lambda: _shut_down(nvml), _errors(nvml))))


def normal_bus_id(text: str) -> str:
    """A bus id as Linux writes it: `00000000:3B:00.0` becomes `0000:3b:00.0`."""
    domain, colon, rest = text.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}" if colon and ":" in rest else text.strip().lower()


def _errors(nvml: Any) -> tuple[type[Exception], ...]:
    """What one question may end with: the library's errors, a function that this version lacks, a refused argument."""
    return (nvml.NVMLError, AttributeError, ctypes.ArgumentError, OSError, ValueError)


def _shut_down(nvml: Any) -> str:
    nvml.nvmlShutdown()
    return "done"


def _read_driver(nvml: Any) -> Iterator[Fact]:
    errors = _errors(nvml)
    yield ask(SUBJECT, "driver", "nvmlSystemGetDriverVersion", lambda: _text(nvml.nvmlSystemGetDriverVersion()), errors)
    count = ask(SUBJECT, "count", "nvmlDeviceGetCount", lambda: int(nvml.nvmlDeviceGetCount()), errors)
    yield count
    for index in range(count.value if isinstance(count.value, int) else 0):
        subject = f"gpu/{index}"
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except errors as error:
            yield Fact(subject, "bus_id", None, "nvmlDeviceGetHandleByIndex", str(error))
            continue
        yield from _read_gpu(nvml, handle, subject)
        yield from _read_links(nvml, handle, subject)


def _read_gpu(nvml: Any, gpu: Any, subject: str) -> Iterator[Fact]:
    def bus_id() -> str:
        return normal_bus_id(_text(nvml.nvmlDeviceGetPciInfo(gpu).busId))

    def capability() -> int:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(gpu)
        return int(major) * 10 + int(minor)

    questions: dict[str, tuple[str, Callable[[], Value]]] = {
        "bus_id": ("nvmlDeviceGetPciInfo", bus_id),
        "uuid": ("nvmlDeviceGetUUID", lambda: _text(nvml.nvmlDeviceGetUUID(gpu))),
        "name": ("nvmlDeviceGetName", lambda: _text(nvml.nvmlDeviceGetName(gpu))),
        "sm": ("nvmlDeviceGetCudaComputeCapability", capability),
        "pcie_max_generation": (
            "nvmlDeviceGetMaxPcieLinkGeneration",
            lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
        ),
        "pcie_max_width": ("nvmlDeviceGetMaxPcieLinkWidth", lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu))),
        "pcie_current_generation": (
            "nvmlDeviceGetCurrPcieLinkGeneration",
            lambda: int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
        ),
        "pcie_current_width": ("nvmlDeviceGetCurrPcieLinkWidth", lambda: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu))),
        "numa_node": ("nvmlDeviceGetMemoryAffinity", lambda: _memory_node(nvml, gpu)),
    }
    for key, (source, call) in questions.items():
        yield ask(subject, key, source, call, _errors(nvml))


def _memory_node(nvml: Any, gpu: Any) -> int:
    """The one NUMA node whose memory is nearest; ValueError where the library names none or several."""
    words = nvml.nvmlDeviceGetMemoryAffinity(gpu, _NODE_WORDS, _NODE_SCOPE)
    nodes = [64 * i + bit for i, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1]
    if len(nodes) != 1:
        raise ValueError(f"memory affinity names {len(nodes)} NUMA nodes, not one")
    return nodes[0]


def _read_links(nvml: Any, gpu: Any, subject: str) -> Iterator[Fact]:
    """Facts of the active links only; that a link does not exist, or is not supported, is no missing fact."""
    none_there = tuple(
        getattr(nvml, name)
        for name in ("NVMLError_InvalidArgument", "NVMLError_NotSupported")
        if isinstance(getattr(nvml, name, None), type)
    )
    errors = _errors(nvml)
    for link in range(int(getattr(nvml, "NVML_NVLINK_MAX_LINKS", _MAX_LINKS))):
        here = f"{subject}/nvlink/{link}"
        try:
            active = int(nvml.nvmlDeviceGetNvLinkState(gpu, link)) == 1
        except none_there:
            continue
        except errors as error:
            yield Fact(here, "state", None, "nvmlDeviceGetNvLinkState", str(error))
            continue
        if active:
            yield Fact(here, "state", "active", "nvmlDeviceGetNvLinkState")
            yield from _read_remote(nvml, gpu, link, here)


def _read_remote(nvml: Any, gpu: Any, link: int, subject: str) -> Iterator[Fact]:
    def remote_kind() -> str:
        code = int(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link))
        if code not in REMOTE_KINDS:
            raise ValueError(f"remote device type is {code}: unknown")
        return REMOTE_KINDS[code]

    def remote_bus_id() -> str:
        return normal_bus_id(_text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).busId))

    errors = _errors(nvml)
    yield ask(subject, "remote_kind", "nvmlDeviceGetNvLinkRemoteDeviceType", remote_kind, errors)
    yield ask(subject, "remote_bus_id", "nvmlDeviceGetNvLinkRemotePciInfo", remote_bus_id, errors)
    yield ask(
        subject,
        "version",
        "nvmlDeviceGetNvLinkVersion",
        lambda: int(nvml.nvmlDeviceGetNvLinkVersion(gpu, link)),
        errors,
    )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
