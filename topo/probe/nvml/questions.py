"""What NVML (the NVIDIA driver's library) says of itself and of the GPUs: identity, place, PCIe link, MIG, fabric.

Indices are NVML's own and ignore CUDA_VISIBLE_DEVICES; match GPUs by bus id or UUID. A GPU that is lost, or gets no
handle, has the fact `lost`, and no more is asked of it than who it is.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from ...facts import Fact, Facts, Value
from .library import Gpu, Nvml, errors_of, normal_bus_id, opened, pci_address, text, told
from .links import read_c2c, read_nvlinks
from .p2p import read_p2p

__all__ = ["SUBJECT", "normal_bus_id", "read_nvml"]

SUBJECT = "nvml"
_LIBRARY = "libnvidia-ml.so.1"

_WORDS = 128
"""Sets of CPUs and of NUMA nodes are asked for in as many words of 64 bits: Linux knows no more than 8192 CPUs."""

_NODE_SCOPE = 0
_FABRIC_STATES = ("not supported", "not started", "in progress", "completed")
_FABRIC = (
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t"),
    ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
)


def read_nvml() -> Facts:
    """Facts about every GPU that the driver lists; one missing fact where there is no library or no driver."""
    try:
        module: Any = importlib.import_module("pynvml")
    except ImportError:
        return _no_library("pynvml", "the Python package nvidia-ml-py is not installed")
    try:
        with opened(module) as nvml:
            return Facts(tuple(_read(nvml)))
    except errors_of(module) as error:
        return _no_library("nvmlInit", told(error))


def _no_library(source: str, reason: str) -> Facts:
    return Facts((Fact(SUBJECT, "library", None, source, reason),))


def _read(nvml: Nvml) -> Iterator[Fact]:
    yield Fact(SUBJECT, "library", _LIBRARY, "nvmlInit")
    yield nvml.ask(SUBJECT, "driver", "nvmlSystemGetDriverVersion", read=text)
    yield nvml.ask(SUBJECT, "version", "nvmlSystemGetNVMLVersion", read=text)
    yield nvml.ask(SUBJECT, "cuda_version", "nvmlSystemGetCudaDriverVersion", read=_cuda_version)
    count = nvml.ask(SUBJECT, "count", "nvmlDeviceGetCount")
    yield count
    gpus: list[Gpu] = []
    for index in range(count.value if isinstance(count.value, int) else 0):
        try:
            gpu = Gpu(index, nvml.module.nvmlDeviceGetHandleByIndex(index))
        except nvml.errors as error:
            yield Fact(f"gpu/{index}", "lost", told(error), "nvmlDeviceGetHandleByIndex")
            continue
        yield from _read_gpu(nvml, gpu)
        if gpu.subject in nvml.lost:
            yield nvml.lost[gpu.subject]
        else:
            gpus.append(gpu)
    yield from read_p2p(nvml, gpus)


def _read_gpu(nvml: Nvml, gpu: Gpu) -> Iterator[Fact]:
    yield from _ask_all(nvml, gpu, _IDENTITY)
    if gpu.subject in nvml.lost:
        return
    yield from _ask_all(nvml, gpu, _PLACE)
    yield from _read_fabric(nvml, gpu)
    yield from read_c2c(nvml, gpu)
    yield from read_nvlinks(nvml, gpu)


def _ask_all(nvml: Nvml, gpu: Gpu, questions: tuple[_Question, ...]) -> Iterator[Fact]:
    for key, function, arguments, read in questions:
        yield nvml.ask(gpu.subject, key, function, gpu.handle, *arguments, read=read)


# -- answers as facts --------------------------------------------------------------------------------------------------


def _cuda_version(number: Any) -> str:
    """`12.4` out of 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _sm(capability: Any) -> int:
    major, minor = capability
    return int(major) * 10 + int(minor)


def _bits(words: Any) -> list[int]:
    return [64 * i + bit for i, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1]


def _cpu_list(words: Any) -> str:
    """CPUs as Linux lists them: `0-19,40-59`; ValueError where there are none."""
    ranges: list[list[int]] = []
    for cpu in _bits(words):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    if not ranges:
        raise ValueError("CPU affinity names no CPU")
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)


def _one_node(words: Any) -> int:
    """The one NUMA node whose memory is nearest; ValueError where the library names none or several."""
    nodes = _bits(words)
    if len(nodes) != 1:
        raise ValueError(f"memory affinity names {len(nodes)} NUMA nodes, not one")
    return nodes[0]


def _node(number: Any) -> int:
    if number < 0:
        raise ValueError(f"the driver says {number}: not known")
    return int(number)


def _mig(modes: Any) -> str:
    """MIG mode at present; the other one is that after the next reset."""
    if modes[0] not in (0, 1):
        raise ValueError(f"MIG mode is {modes[0]}, which is not known here")
    return "on" if modes[0] else "off"


_Question = tuple[str, str, tuple[int, ...], Callable[[Any], Value]]
"""Key, function of pynvml, its arguments after the handle, and how to read the answer."""

_IDENTITY: tuple[_Question, ...] = (
    ("bus_id", "nvmlDeviceGetPciInfo", (), pci_address),
    ("uuid", "nvmlDeviceGetUUID", (), text),
    ("name", "nvmlDeviceGetName", (), text),
    ("sm", "nvmlDeviceGetCudaComputeCapability", (), _sm),
)
_PLACE: tuple[_Question, ...] = (
    ("pcie_max_generation", "nvmlDeviceGetMaxPcieLinkGeneration", (), int),
    ("pcie_max_width", "nvmlDeviceGetMaxPcieLinkWidth", (), int),
    ("pcie_current_generation", "nvmlDeviceGetCurrPcieLinkGeneration", (), int),
    ("pcie_current_width", "nvmlDeviceGetCurrPcieLinkWidth", (), int),
    ("numa_node", "nvmlDeviceGetMemoryAffinity", (_WORDS, _NODE_SCOPE), _one_node),
    ("gpu_numa_id", "nvmlDeviceGetNumaNodeId", (), _node),
    ("cpu_affinity", "nvmlDeviceGetCpuAffinity", (_WORDS,), _cpu_list),
    ("mig", "nvmlDeviceGetMigMode", (), _mig),
)


# -- fabric of several machines ----------------------------------------------------------------------------------------


def _read_fabric(nvml: Nvml, gpu: Gpu) -> Iterator[Fact]:
    """State of the GPU's registration with the fabric manager; cluster and clique once that is completed."""
    info, answer = _fabric_info(nvml, gpu)
    yield answer
    if info is None or answer.value != "completed":
        return
    cluster = bytes(info.clusterUuid).hex()
    parts = (cluster[:8], cluster[8:12], cluster[12:16], cluster[16:20], cluster[20:])
    if int(cluster, 16):
        yield Fact(gpu.subject, "fabric_cluster", "-".join(parts), answer.source)
    else:
        reason = "the cluster's UUID is all zeros: a fabric of this machine alone"
        yield Fact(gpu.subject, "fabric_cluster", None, answer.source, reason)
    yield Fact(gpu.subject, "fabric_clique", int(info.cliqueId), answer.source)


def _fabric_info(nvml: Nvml, gpu: Gpu) -> tuple[Any, Fact]:
    """What the newest of the functions that answers fills in, and the fact `fabric_state` (or the first's reason)."""
    failed: list[Fact] = []
    for function, structure in _FABRIC:
        if not hasattr(nvml.module, structure):
            failed.append(
                Fact(gpu.subject, "fabric_state", None, function, f"this version of pynvml has no {structure}")
            )
            continue
        info = getattr(nvml.module, structure)()

        def state(_: Any, info: Any = info) -> str:
            return _fabric_state(nvml, info)

        answer = nvml.ask(gpu.subject, "fabric_state", function, gpu.handle, ctypes.byref(info), read=state)
        if answer.value is not None:
            return info, answer
        failed.append(answer)
    return None, failed[0]


def _fabric_state(nvml: Nvml, info: Any) -> str:
    """The state in words. Raises what the registration ended with, and ValueError for a state not known here."""
    if info.state >= len(_FABRIC_STATES):
        raise ValueError(f"fabric state is {info.state}, which is not known here")
    state = _FABRIC_STATES[info.state]
    if state == "completed" and info.status:
        raise ValueError(f"registration with the fabric failed: {told(nvml.module.NVMLError(info.status))}")
    return state
