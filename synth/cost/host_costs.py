"""What sending costs the hosts themselves: core time a message and a byte, and how long a message takes to be noticed.

Fitted on the machine at hand by `topo-run --calibrate` (runtime/calibrate.py), and kept with the topology, in the field
"host" of its JSON. LogP's o and L (Culler et al. 1993) and LogGP's G (Alexandrov et al. 1995), with cores that all ranks
of a host share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ...topo.errors import InputError
from ...topo.graph import Topology

FIELD = "host"
_MOST = 1e9


@dataclass(frozen=True)
class HostCosts:
    """Times in microseconds, or nanoseconds a byte; `cores` are those that all ranks together have.

    `send_us` and `receive_us` are a rank's own time to post, and to post, await and take in a message; `io_us` what the
    transport's thread needs for one that arrives; `wake_us` from there until the rank goes on, if cores are idle.
    `byte_ns` is core time a byte at each end, `add_ns` a byte of reduction or packing. `call_us` is there once a call.
    Links carry `wire` of their bandwidth, and `burst_bytes` at once after a pause. `source` says where this is from.
    """

    send_us: float = 20.0
    receive_us: float = 25.0
    io_us: float = 25.0
    wake_us: float = 30.0
    byte_ns: float = 0.3
    add_ns: float = 0.3
    call_us: float = 40.0
    cores: int = 2
    wire: float = 0.99
    burst_bytes: int = 0
    source: str = "not measured"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object, where: str = FIELD) -> HostCosts:
        """Read `to_json`'s object; missing fields have defaults, unknown ones are left out. InputError otherwise."""
        if not isinstance(data, Mapping):
            raise InputError(f"{where}: expected an object with the costs that topo-run --calibrate writes")
        given: dict[str, Any] = {}
        for f in fields(cls):
            if f.name not in data:
                continue
            value = data[f.name]
            if f.name == "source":
                given[f.name] = str(value)
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MOST
            if not number or (f.name in ("cores", "wire") and not value):
                raise InputError(f"{where}: {f.name} is {value!r}; expected a number from 0 up")
            given[f.name] = int(value) if f.name in ("cores", "burst_bytes") else float(value)
        return cls(**given)


def host_of(topology: Topology) -> HostCosts | None:
    """The host costs that come with a topology, if it was calibrated."""
    data = topology.extra.get(FIELD)
    return None if data is None else HostCosts.from_json(data, f"{topology.name}: {FIELD}")


def with_host(topology: Topology, host: HostCosts) -> Topology:
    """The topology with host costs."""
    return replace(topology, extra={**topology.extra, FIELD: host.to_json()})
