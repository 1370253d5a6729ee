"""Query NVML (the NVIDIA driver's library) for its version and for facts about each GPU.

These are its identity, position, PCIe link, MIG mode and fabric. Indices are NVML's own and ignore
CUDA_VISIBLE_DEVICES; match GPUs by PCI address or UUID. A GPU that is lost, or has no handle, has
the fact `lost` and at most its identity. One that this process may not use (NVML counts the GPUs
outside a job's cgroup, too) has the fact `denied`.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any
from uuid import UUID

from ...derived.fabric_health import FABRIC_STATES, describe_health
from ...facts import Fact, Facts, Value, keys
from ...facts.keys import NVML, Key, gpu_subject
from .library import (
    Gpu,
    Nvml,
    decode_text,
    describe_error,
    list_errors,
    open_nvml,
    read_pci_address,
)
from .links import read_c2c, read_nvlinks, read_p2p

# No machine has as many GPUs; drivers have answered 4294967295.
_MAX_GPUS = 1024
# MIG devices of a GPU: seven on those there are; a higher maximum is a driver error.
_MAX_MIG = 64
# Length of the bit sets of CPUs and NUMA nodes, in words of 64 bits: Linux supports at most 8192
# CPUs.
_WORDS = 128

# NVML_AFFINITY_SCOPE_NODE: the nodes nearest to a GPU, not those of its socket.
_NODE_SCOPE = 0
_FABRIC = (
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t"),
    ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
)


def read_nvml() -> Facts:
    """Return facts about every GPU that the driver lists.

    Without the library or the driver, return one missing fact with the reason.
    """
    try:
        module: Any = importlib.import_module("pynvml")
    except ImportError:
        return _report_no_library("pynvml", "the Python package nvidia-ml-py is not installed")
    try:
        with open_nvml(module) as nvml:
            return Facts(tuple(_read(nvml)))
    except list_errors(module) as error:
        return _report_no_library("nvmlInit", describe_error(error))


def _report_no_library(source: str, reason: str) -> Facts:
    return Facts((Fact(NVML, keys.NVML_LIBRARY, None, source, reason),))


def _read(nvml: Nvml) -> Iterator[Fact]:
    yield Fact(NVML, keys.NVML_LIBRARY, "libnvidia-ml.so.1", "nvmlInit")
    yield nvml.ask(NVML, keys.NVML_DRIVER, "nvmlSystemGetDriverVersion", read=decode_text)
    yield nvml.ask(NVML, keys.NVML_VERSION, "nvmlSystemGetNVMLVersion", read=decode_text)
    yield nvml.ask(
        NVML,
        keys.NVML_CUDA_VERSION,
        "nvmlSystemGetCudaDriverVersion",
        read=lambda number: f"{number // 1000}.{number % 1000 // 10}",  # 12040 means 12.4
    )
    yield nvml.ask(
        NVML, keys.NVML_CONFIDENTIAL, "nvmlSystemGetConfComputeState", read=_read_confidential
    )
    count = nvml.ask(NVML, keys.NVML_COUNT, "nvmlDeviceGetCount")
    yield count
    no_permission = nvml.list_error_classes("NoPermission")
    exists = nvml.list_error_classes("NoPermission", "GpuIsLost", "ResetRequired")
    gpus: list[Gpu] = []
    said = count.value if isinstance(count.value, int) else 0
    for index in range(min(said, _MAX_GPUS)):
        try:
            gpu = Gpu(index, nvml.module.nvmlDeviceGetHandleByIndex(index))
        except nvml.errors as error:
            if said > _MAX_GPUS and not isinstance(error, exists):
                break  # a count that cannot be: the first number without a GPU ends it
            yield Fact(
                gpu_subject(index),
                keys.GPU_DENIED if isinstance(error, no_permission) else keys.GPU_LOST,
                describe_error(error),
                "nvmlDeviceGetHandleByIndex",
            )
            continue
        identity = tuple(_ask_all(nvml, gpu, _IDENTITY))
        if said > _MAX_GPUS and all(fact.value is None for fact in identity):
            break
        yield from identity
        if gpu.subject in nvml.denied and all(fact.value is None for fact in identity):
            refused = identity[0]
            yield replace(refused, key=keys.GPU_DENIED, value=refused.missing, missing=None)
            continue
        yield from _read_gpu(nvml, gpu)
        if gpu.subject in nvml.lost:
            yield nvml.lost[gpu.subject]
        else:
            gpus.append(gpu)
    yield from read_p2p(nvml, gpus)


def _read_gpu(nvml: Nvml, gpu: Gpu) -> Iterator[Fact]:
    if gpu.subject in nvml.lost:
        return
    for fact in _ask_all(nvml, gpu, _PLACE):
        yield fact
        if (fact.key, fact.value) == (keys.GPU_MIG, "on"):
            yield _read_mig_devices(nvml, gpu)
    yield from _read_fabric(nvml, gpu)
    yield from read_c2c(nvml, gpu)
    yield from read_nvlinks(nvml, gpu)


def _ask_all(nvml: Nvml, gpu: Gpu, questions: tuple[_Question, ...]) -> Iterator[Fact]:
    for key, function, arguments, read in questions:
        yield nvml.ask(gpu.subject, key, function, gpu.handle, *arguments, read=read)


# -- converting answers to facts


def _convert_capability(capability: Any) -> int:
    major, minor = capability
    return int(major) * 10 + int(minor)


def _list_bits(words: Any) -> list[int]:
    return [
        64 * i + bit
        for i, word in enumerate(map(int, words))
        for bit in range(word.bit_length())
        if word >> bit & 1
    ]


def _format_cpus(words: Any) -> str:
    """Format a bit set of CPUs as Linux lists them: `0-19,40-59`.

    Raise ValueError if it is empty.
    """
    cpus = _list_bits(words)
    if not cpus:
        raise ValueError("CPU affinity names no CPU")
    # throughout a range, the number of a CPU less its position is the same
    groups = groupby(enumerate(cpus), lambda at: at[1] - at[0])
    ranges = ([cpu for _, cpu in members] for _, members in groups)
    return ",".join(f"{own[0]}-{own[-1]}" if len(own) > 1 else f"{own[0]}" for own in ranges)


def _find_single_node(words: Any) -> int:
    nodes = _list_bits(words)
    if len(nodes) != 1:
        raise ValueError(f"memory affinity names {len(nodes)} NUMA nodes, not one")
    return nodes[0]


def _check_node(number: Any) -> int:
    if number < 0:
        raise ValueError(f"the driver says {number}: not known")
    return int(number)


def _read_confidential(state: Any) -> str:
    # nvmlConfComputeSystemState_t: the feature is 0 (disabled) or 1 (enabled).
    if state.ccFeature not in (0, 1):
        raise ValueError(f"the feature is {state.ccFeature}, which is not known here")
    return "on" if state.ccFeature else "off"


def _read_mig(modes: Any) -> str:
    # The second mode takes effect after the next reset.
    if modes[0] not in (0, 1):
        raise ValueError(f"MIG mode is {modes[0]}, which is not known here")
    return "on" if modes[0] else "off"


def _read_mig_devices(nvml: Nvml, gpu: Gpu) -> Fact:
    """Return the fact `mig_devices`: the UUIDs of a GPU's MIG devices, by their numbers."""
    function, uuids = "nvmlDeviceGetMigDeviceHandleByIndex", []
    try:
        for i in range(min(nvml.module.nvmlDeviceGetMaxMigDeviceCount(gpu.handle), _MAX_MIG)):
            # Numbers of devices that are not there answer "not found".
            with suppress(nvml.module.NVMLError):
                device = getattr(nvml.module, function)(gpu.handle, i)
                uuids.append(decode_text(nvml.module.nvmlDeviceGetUUID(device)))
    except nvml.errors as error:
        return Fact(gpu.subject, keys.GPU_MIG_DEVICES, None, function, describe_error(error))
    return Fact(gpu.subject, keys.GPU_MIG_DEVICES, tuple(uuids), function)


# Key, pynvml function, its arguments after the handle, and the function that converts its answer.
_Question = tuple[Key[Any], str, tuple[int, ...], Callable[[Any], Value]]

_IDENTITY: tuple[_Question, ...] = (
    (keys.GPU_BUS_ID, "nvmlDeviceGetPciInfo", (), read_pci_address),
    (keys.GPU_UUID, "nvmlDeviceGetUUID", (), decode_text),
    (keys.GPU_NAME, "nvmlDeviceGetName", (), decode_text),
    (keys.GPU_SM, "nvmlDeviceGetCudaComputeCapability", (), _convert_capability),
)
_PLACE: tuple[_Question, ...] = (
    (keys.GPU_PCIE_MAX_GENERATION, "nvmlDeviceGetMaxPcieLinkGeneration", (), int),
    (keys.GPU_PCIE_MAX_WIDTH, "nvmlDeviceGetMaxPcieLinkWidth", (), int),
    (keys.GPU_PCIE_CURRENT_GENERATION, "nvmlDeviceGetCurrPcieLinkGeneration", (), int),
    (keys.GPU_PCIE_CURRENT_WIDTH, "nvmlDeviceGetCurrPcieLinkWidth", (), int),
    (keys.GPU_NUMA_NODE, "nvmlDeviceGetMemoryAffinity", (_WORDS, _NODE_SCOPE), _find_single_node),
    (keys.GPU_OWN_NUMA_NODE, "nvmlDeviceGetNumaNodeId", (), _check_node),
    (keys.GPU_CPU_AFFINITY, "nvmlDeviceGetCpuAffinity", (_WORDS,), _format_cpus),
    (keys.GPU_MIG, "nvmlDeviceGetMigMode", (), _read_mig),
    (keys.GPU_UTILIZATION, "nvmlDeviceGetUtilizationRates", (), lambda x: int(x.gpu)),
)


# -- fabric that joins several machines


def _read_fabric(nvml: Nvml, gpu: Gpu) -> Iterator[Fact]:
    # Cluster and clique are meaningless until the registration is completed.
    info, answer = _ask_fabric(nvml, gpu)
    yield answer
    if info is None or answer.value != "completed":
        return
    cluster = UUID(bytes=bytes(info.clusterUuid))
    yield Fact(
        gpu.subject,
        keys.GPU_FABRIC_CLUSTER,
        str(cluster) if cluster.int else None,
        answer.source,
        None if cluster.int else "the cluster's UUID is all zeros: a fabric of this machine alone",
    )
    yield Fact(gpu.subject, keys.GPU_FABRIC_CLIQUE, int(info.cliqueId), answer.source)
    if mask := int(getattr(info, "healthMask", 0)):
        yield Fact(gpu.subject, keys.GPU_FABRIC_HEALTH, describe_health(mask), answer.source)


def _ask_fabric(nvml: Nvml, gpu: Gpu) -> tuple[Any, Fact]:
    """Return the fabric structure that NVML fills in, and the fact `fabric_state`.

    The newest supported function counts. If all fail, the structure is None, and the fact is
    missing with the reason of the first failure.
    """
    failed: list[Fact] = []
    for function, structure in _FABRIC:
        if not hasattr(nvml.module, structure):
            failed.append(
                Fact(
                    gpu.subject,
                    keys.GPU_FABRIC_STATE,
                    None,
                    function,
                    f"this version of pynvml has no {structure}",
                )
            )
            continue
        info = getattr(nvml.module, structure)()
        answer = nvml.ask(
            gpu.subject,
            keys.GPU_FABRIC_STATE,
            function,
            gpu.handle,
            ctypes.byref(info),
            read=partial(_read_fabric_state, nvml, info),
        )
        if answer.value is not None:
            return info, answer
        failed.append(answer)
    return None, failed[0]


def _read_fabric_state(nvml: Nvml, info: Any, _: Any) -> str:
    """Return the state in words, which NVML has written to `info`.

    Raise ValueError for a failed registration or an unknown state.
    """
    if info.state >= len(FABRIC_STATES):
        raise ValueError(f"fabric state is {info.state}, which is not known here")
    state = FABRIC_STATES[info.state]
    if state == "completed" and info.status:
        raise ValueError(
            f"{keys.FABRIC_FAILED}: {describe_error(nvml.module.NVMLError(info.status))}"
        )
    return state
