"""Query NVML for the links of GPUs: NVLinks, link by link, NVLink-C2C, and peer-to-peer (P2P).

An NVLink exists if the query for its state succeeds: some GPUs report capabilities of links that do
not exist, and the query for the state fails past the last real link. The numbers of active links
need not be contiguous. The state does not name the GPU at the other end, so the remote end is
queried as well. P2P status may differ by direction and is queried in both; the common ancestor is
the same in both.

An Nvml (library.py) asks one question at a time, and returns the answer, or why there is none, as a
fact.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from ...facts import Fact, keys
from ...facts.keys import P2P, Key, gpu_subject, p2p_subject, parse_pair
from .library import FIELD_VALUES, Gpu, Nvml, describe_error, read_pci_address

# Kinds of devices at the other end of an NVLink, by nvmlIntNvLinkDeviceType_t; 255 is unknown.
REMOTE_KINDS = {0: "gpu", 1: "cpu", 2: "switch"}

_STATE = "nvmlDeviceGetNvLinkState"
# Links to query if pynvml gives no maximum: an H100 has 18.
_KNOWN_LINKS = 18
_MAX_LINKS = 1024  # no GPU has as many: a higher count is a driver error

# Field ids in nvml.h. Speeds are those of one direction.
_SPEED_MBPS_COMMON = 90
_LINK_COUNT = 91
_GET_SPEED = 164  # the scope is the link
_C2C_LINK_COUNT = 170
_C2C_LINK_GET_STATUS = 171
_C2C_LINK_GET_MAX_BW = 172
_NAMES = {
    _SPEED_MBPS_COMMON: "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON",
    _LINK_COUNT: "NVML_FI_DEV_NVLINK_LINK_COUNT",
    _GET_SPEED: "NVML_FI_DEV_NVLINK_GET_SPEED",
    _C2C_LINK_COUNT: "NVML_FI_DEV_C2C_LINK_COUNT",
    _C2C_LINK_GET_MAX_BW: "NVML_FI_DEV_C2C_LINK_GET_MAX_BW",
}

# nvmlGpuP2PCapsIndex_t; pynvml's own constant for READ is a tuple by mistake.
_CAPABILITIES = {
    keys.P2P_READ: 0,
    keys.P2P_WRITE: 1,
    keys.P2P_NVLINK: 2,
    keys.P2P_ATOMICS: 3,
    keys.P2P_PCIE: 4,
}
_STATUS = (
    "ok",
    "chipset not supported",
    "gpu not supported",
    "topology not supported",
    "disabled by registry key",
    "not supported",
)
_ANCESTORS = {
    0: "internal",
    10: "single",
    20: "multiple",
    30: "hostbridge",
    40: "node",
    50: "system",
}


def read_nvlinks(nvml: Nvml, gpu: Gpu) -> Iterator[Fact]:
    """Yield facts about a GPU's NVLinks: their number as reported, and the state of each link.

    For active links, also yield their remote ends and speeds.
    """
    count = _make_fact(
        gpu.subject,
        keys.GPU_NVLINK_COUNT,
        _LINK_COUNT,
        nvml.read_fields(gpu, [(_LINK_COUNT, 0)])[0],
    )
    yield count
    active: list[int] = []
    for state in _ask_states(nvml, gpu, count.value if isinstance(count.value, int) else None):
        yield state
        if state.value == "active":
            link = int(state.subject.rpartition("/")[2])
            active.append(link)
            yield from _read_remote(nvml, gpu, link, state.subject)
    if active:
        yield from _read_speeds(nvml, gpu, active)


def _ask_states(nvml: Nvml, gpu: Gpu, count: int | None) -> Iterator[Fact]:
    """Yield a fact `state` for each link that exists.

    Every number up to the larger of pynvml's maximum and the `count` that the GPU reports is
    queried. A link does not exist if the query fails with "invalid argument" or "not supported", or
    with any other error for a number past `count`.
    """
    nonexistent = nvml.list_error_classes("InvalidArgument", "NotSupported")
    no_function: tuple[type[Exception], ...] = (
        AttributeError,
        *nvml.list_error_classes("FunctionNotFound"),
    )
    for link in range(
        max(int(getattr(nvml.module, "NVML_NVLINK_MAX_LINKS", _KNOWN_LINKS)), count or 0)
    ):
        subject = f"{gpu.subject}/nvlink/{link}"
        try:
            state = nvml.ask(
                subject,
                keys.NVLINK_STATE,
                _STATE,
                gpu.handle,
                link,
                read=lambda active: "active" if active else "inactive",
                let_through=(*nonexistent, *no_function),
            )
        except nonexistent:
            continue
        except no_function as error:
            yield Fact(subject, keys.NVLINK_STATE, None, _STATE, describe_error(error))
            return
        if state.value is not None or count is None or link < count:
            yield state


def _read_remote(nvml: Nvml, gpu: Gpu, link: int, subject: str) -> Iterator[Fact]:
    for key, function, read in (
        (keys.NVLINK_REMOTE_KIND, "nvmlDeviceGetNvLinkRemoteDeviceType", _read_remote_kind),
        (keys.NVLINK_REMOTE_BUS_ID, "nvmlDeviceGetNvLinkRemotePciInfo", read_pci_address),
        (keys.NVLINK_VERSION, "nvmlDeviceGetNvLinkVersion", int),
    ):
        yield nvml.ask(subject, key, function, gpu.handle, link, read=read)


def _read_remote_kind(code: Any) -> str:
    if code not in REMOTE_KINDS:
        raise ValueError(f"remote device type is {code}: unknown")
    return REMOTE_KINDS[code]


def _read_speeds(nvml: Nvml, gpu: Gpu, active: list[int]) -> Iterator[Fact]:
    # A link's own speed is preferred to the one that the GPU reports for all of its links.
    *own, common = nvml.read_fields(
        gpu, [*((_GET_SPEED, link) for link in active), (_SPEED_MBPS_COMMON, 0)]
    )
    for link, speed in zip(active, own, strict=True):
        subject = f"{gpu.subject}/nvlink/{link}"
        fact = _make_fact(subject, keys.NVLINK_SPEED_MBps, _GET_SPEED, speed)
        if fact.value is None:
            fallback = _make_fact(subject, keys.NVLINK_SPEED_MBps, _SPEED_MBPS_COMMON, common)
            fact = fact if fallback.value is None else fallback
        yield fact


def read_c2c(nvml: Nvml, gpu: Gpu) -> Iterator[Fact]:
    """Yield facts about a GPU's NVLink-C2C: the number of active links, and their total MB/s.

    The rate is left out if no link is active.
    """
    count = _make_fact(
        gpu.subject,
        keys.GPU_C2C_COUNT,
        _C2C_LINK_COUNT,
        nvml.read_fields(gpu, [(_C2C_LINK_COUNT, 0)])[0],
    )
    if not count.value:
        yield count
        return
    links = range(int(str(count.value)))
    states = nvml.read_fields(gpu, [(_C2C_LINK_GET_STATUS, link) for link in links])
    active = [link for link, state in zip(links, states, strict=True) if state == 1]
    yield Fact(gpu.subject, keys.GPU_C2C_COUNT, len(active), count.source)
    if active:
        rates = nvml.read_fields(gpu, [(_C2C_LINK_GET_MAX_BW, link) for link in active])
        total = next((rate for rate in rates if isinstance(rate, str)), None) or sum(
            map(int, rates)
        )
        yield _make_fact(gpu.subject, keys.GPU_C2C_MBps, _C2C_LINK_GET_MAX_BW, total)


def _make_fact(subject: str, key: Key[int], field: int, answer: int | str) -> Fact:
    # Counts of more links than a GPU can have, and speeds of 0, are driver errors.
    source = f"{FIELD_VALUES} {_NAMES[field]}"
    if isinstance(answer, str):
        return Fact(subject, key, None, source, answer)
    if (key.endswith("_count") and not 0 <= answer <= _MAX_LINKS) or (
        key.endswith("_MBps") and answer <= 0
    ):
        return Fact(subject, key, None, source, f"the driver says {answer}: not known")
    return Fact(subject, key, answer, source)


def read_p2p(nvml: Nvml, gpus: Sequence[Gpu]) -> Iterator[Fact]:
    """Yield the facts `gpu/N/p2p/M` of every ordered pair of `gpus`.

    They are the status of each kind of access, and the common PCIe ancestor. A GPU that is lost
    meanwhile has the fact `lost`, too.
    """
    for a, b in combinations(gpus, 2):
        forth, back = p2p_subject(a.index, b.index), p2p_subject(b.index, a.index)
        ancestor = nvml.ask(
            forth,
            keys.P2P_ANCESTOR,
            "nvmlDeviceGetTopologyCommonAncestor",
            a.handle,
            b.handle,
            read=_read_ancestor,
        )
        for subject, source, target in ((forth, a, b), (back, b, a)):
            for key, capability in _CAPABILITIES.items():
                yield nvml.ask(
                    subject,
                    key,
                    "nvmlDeviceGetP2PStatus",
                    source.handle,
                    target.handle,
                    capability,
                    read=_read_status,
                )
            yield replace(ancestor, subject=subject)
    yield from _find_lost(nvml, gpus)


def _find_lost(nvml: Nvml, gpus: Sequence[Gpu]) -> Iterator[Fact]:
    """Yield the fact `lost` of GPUs that the queries of pairs found lost.

    The error does not tell which GPU of a pair it is: those that no longer tell their UUID either,
    and, of the pairs that these leave unexplained, those in as many failed pairs as possible.
    """
    pairs = {s: {*pair} for s in nvml.lost if (pair := parse_pair(s, P2P)) is not None}
    if not pairs:
        return
    for gpu in gpus:
        nvml.ask(gpu.subject, keys.GPU_UUID, "nvmlDeviceGetUUID", gpu.handle, read=str)
    lost = {str(gpu.index): nvml.lost[gpu.subject] for gpu in gpus if gpu.subject in nvml.lost}
    first = nvml.lost[next(iter(pairs))]
    while open_pairs := [pair for pair in pairs.values() if not pair & lost.keys()]:
        failures = Counter(index for pair in open_pairs for index in pair)
        most = max(failures.values())
        lost |= {
            index: replace(first, subject=gpu_subject(index))
            for index, count in failures.items()
            if count == most
        }
    yield from lost.values()


def _read_status(code: Any) -> str:
    if code == len(_STATUS):  # NVML_P2P_STATUS_UNKNOWN
        raise ValueError("the driver says unknown")
    if code >= len(_STATUS):
        raise ValueError(f"the driver says {code}, which is not known here")
    return _STATUS[code]


def _read_ancestor(level: Any) -> str:
    if level not in _ANCESTORS:
        raise ValueError(f"common ancestor is {level}, which is not known here")
    return _ANCESTORS[level]
