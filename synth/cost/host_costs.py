"""The hosts' own costs of sending: core time per message and per byte, and wake-up delay.

The wake-up delay is the time until the receiver notices a message. The costs are fitted on the
current machine by calibration (topo-run --calibrate) and stored with the topology, in the
field "host" of its JSON. They are LogP's o and L (Culler et al. 1993) and LogGP's G (Alexandrov et
al. 1995), with cores that all ranks of a host share.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Annotated, Any

from msgspec import Meta

from ...topo.graph import Topology
from ...topo.schema import Count, Index, read_as
from ...topo.slips import check_slips

FIELD = "host"
# Microseconds of a step between GPUs over NCCL beyond the latencies of its links, if nothing was
# measured.
#
# A step is one group of ncclSend and ncclRecv, which is one kernel: it must be launched, find its
# connections, and end before the next. NCCL's tuner counts 6.6 us of this for any ring
# (src/graph/tuning.cc, baseLatencies, LL, which small messages use; 8.4 for Simple, which large
# ones use), and adds the links' latencies, hwLatencies, which are those of topo/hardware.py.
# Measured by nccl-tests' sendrecv_perf: 3.7 us on 4 H800 inside a CUDA graph, which saves the
# launch (NCCL issue 1984), about 3 us on 2 H100 (issue 1487), 31 to 34 us on A40s of two hosts
# (nccl-tests issue 214).
NCCL_STEP_us = Fraction(33, 5)
# Kinds of links between GPUs of real machines; the links of abstract graphs have none of them.
_MEDIA = frozenset({"nvlink", "xgmi", "c2c", "pcie", "network"})
_Cost = Annotated[float, Meta(ge=0, le=1e9)]


@dataclass(frozen=True)
class HostCosts:
    """The costs of sending on a host, in microseconds, or in nanoseconds per byte.

    All ranks share `cores` cores. `send_us` is a rank's own time to post a message, `receive_us`
    its time to post, await and unpack one; `io_us` is the time of the transport's thread for an
    arriving message; `wake_us` passes from there until the rank continues, if cores are idle.
    `byte_ns` is core time per byte at each end, `add_ns` per byte of reduction or packing.
    `call_us` is paid once per call. Links carry the fraction `wire` of their bandwidth, and
    `burst_bytes` at once after a pause. `source` is the origin of these numbers.
    """

    send_us: _Cost = 20.0
    receive_us: _Cost = 25.0
    io_us: _Cost = 25.0
    wake_us: _Cost = 30.0
    byte_ns: _Cost = 0.3
    add_ns: _Cost = 0.3
    call_us: _Cost = 40.0
    cores: Count = 2
    wire: Annotated[float, Meta(gt=0, le=1e9)] = 0.99
    burst_bytes: Index = 0
    source: str = "not measured"

    def to_json(self) -> dict[str, Any]:
        """Return the costs as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object, where: str = FIELD) -> HostCosts:
        """Read the object that `to_json` returns; `where` names it in errors.

        Missing fields have defaults, unknown ones are ignored. Raise InputError if it is malformed,
        or an unknown field looks like a misspelled one.
        """
        if isinstance(data, dict):
            check_slips(data, frozenset(each.name for each in fields(cls)), where)
        return read_as(data, cls, where)


def host_of(topology: Topology) -> HostCosts | None:
    """Return the host costs stored with a topology, None if it was not calibrated.

    Raise InputError if they are malformed.
    """
    data = topology.extra.get(FIELD)
    return None if data is None else HostCosts.from_json(data, f"{topology.name}: {FIELD}")


def with_host(topology: Topology, host: HostCosts) -> Topology:
    """Return a copy of the topology with these host costs in place of any that it has."""
    return replace(topology, extra={**topology.extra, FIELD: host.to_json()})


# The costs of GPUs over NCCL if nothing was measured: a kernel per step, and no CPU time.
OVER_NCCL = HostCosts(
    send_us=0.0,
    receive_us=0.0,
    io_us=0.0,
    wake_us=float(NCCL_STEP_us),
    byte_ns=0.0,
    add_ns=0.0,
    call_us=0.0,
    source="not measured; typical of NCCL",
)
# The costs over MPI if nothing was measured: the transport has no thread, the waiting rank polls.
#
# Fitted by calibration on 2 ranks with a core each (Open MPI 4.1.4, through memory).
OVER_MPI = HostCosts(
    send_us=2.7,
    receive_us=4.1,
    io_us=0.0,
    wake_us=3.3,
    byte_ns=0.11,
    add_ns=0.11,
    call_us=16.0,
    source="not measured; typical of MPI",
)


def runs_over_nccl(topology: Topology) -> bool:
    """Return whether the ranks are GPUs of a real machine, so that NCCL or RCCL sends for them."""
    if any("stands_for" in d.extra for d in topology.devices if d.kind == "gpu"):
        return False
    gpus = set(topology.ranks)
    return any(link.kind in _MEDIA for link in topology.links if link.src in gpus)


def step_us(topology: Topology) -> Fraction:
    """Return the microseconds that NCCL adds to each step, beyond the latencies of links.

    The result is 0 for graphs that are no real machine (see `runs_over_nccl`), and for calibrated
    topologies, whose host costs include it.
    """
    return NCCL_STEP_us if FIELD not in topology.extra and runs_over_nccl(topology) else Fraction(0)


def describe_host(topology: Topology) -> str:
    """Return where the host costs in predictions for a topology come from, in words."""
    host, step = host_of(topology), float(step_us(topology))
    if host is not None:
        return host.source
    if step:
        return f"{OVER_NCCL.source} ({step:g} us a step)"
    return "not measured; none, the links' latencies alone"
