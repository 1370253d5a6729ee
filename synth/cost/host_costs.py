"""What sending costs the hosts themselves: core time a message and a byte, and how long a message takes to be noticed.

Fitted on the machine at hand by `topo-run --calibrate` (runtime/measuring/calibrate.py), and kept with the topology, in
the field "host" of its JSON. LogP's o and L (Culler et al. 1993) and LogGP's G (Alexandrov et al. 1995), with cores that all
ranks of a host share.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from msgspec import Meta

from ...topo.graph import Topology
from ...topo.schema import Count, Index, read_as

FIELD = "host"
_Cost = Annotated[float, Meta(ge=0, le=1e9)]


@dataclass(frozen=True)
class HostCosts:
    """Times in microseconds, or nanoseconds a byte; `cores` are those that all ranks together have.

    `send_us` and `receive_us` are a rank's own time to post, and to post, await and take in a message; `io_us` what the
    transport's thread needs for one that arrives; `wake_us` from there until the rank goes on, if cores are idle.
    `byte_ns` is core time a byte at each end, `add_ns` a byte of reduction or packing. `call_us` is there once a call.
    Links carry `wire` of their bandwidth, and `burst_bytes` at once after a pause. `source` says where this is from.
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
        """Read `to_json`'s object; missing fields have defaults, unknown ones are left out. InputError otherwise."""
        return read_as(data, cls, where)


def host_of(topology: Topology) -> HostCosts | None:
    """Return the host costs that come with a topology, None where it was not calibrated."""
    data = topology.extra.get(FIELD)
    return None if data is None else HostCosts.from_json(data, f"{topology.name}: {FIELD}")


def with_host(topology: Topology, host: HostCosts) -> Topology:
    """Return the topology with host costs."""
    return replace(topology, extra={**topology.extra, FIELD: host.to_json()})
