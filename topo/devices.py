"""Devices of a machine, and the directed links between them.

A source is a text on where a value comes from; one that begins "assumed:" states nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, get_args

from .errors import InputError
from .exact import parse_fraction
from .notes import BOARD, Source, read_source

DeviceKind = Literal["gpu", "cpu", "switch", "nic"]
SwitchFamily = Literal["pcie", "nvswitch", "network"]
DEVICE_KINDS: tuple[str, ...] = get_args(DeviceKind)
Ability = Literal["yes", "no", "possible"]
ABILITIES: tuple[str, ...] = get_args(Ability)
SWITCH_FAMILIES: tuple[str, ...] = get_args(SwitchFamily)
DEFAULT_BANDWIDTH_GBps = Fraction(1)
DEFAULT_LATENCY_us = Fraction(7, 10)
# The field of a link that is true if nothing states the number of its lanes or bonded links.
UNCOUNTED = "uncounted"


@dataclass(frozen=True)
class InNetwork:
    """Whether a switch can add data that passes through it, such as NVLink SHARP.

    `reduce` is "yes" (it does so in this machine), "no" (it cannot) or "possible" (the hardware
    can, and whoever runs the job must switch it on). Bounds and plans count "possible" as no. A
    switch that can add can also multicast. `source` is the source of the answer.
    """

    reduce: str
    source: str

    def __post_init__(self) -> None:
        if self.reduce not in ABILITIES:
            raise InputError(
                f"in_network: reduce is {self.reduce!r}; expected one of {', '.join(ABILITIES)}"
            )


@dataclass(frozen=True)
class Device:
    """A node of the graph of a machine: a GPU, CPU, switch or NIC.

    `kind` is gpu, cpu, switch or nic; `family` of a switch is pcie, nvswitch or network.
    `can_reduce` and `can_copy` say whether a switch adds or multicasts data that passes through it
    (in-network computing, such as NVLink SHARP). A switch that can add can also multicast; GPUs
    always can do both. `in_network` is the hardware's capability, "yes" if `can_reduce`.
    `numa_node` is the NUMA node, `bus_id` the PCI address, `source` says where the data comes from;
    None means unknown. `extra` has all other fields of the device in its file. Raise InputError for
    an empty id or an unknown kind or family.
    """

    id: str
    kind: str = "gpu"
    family: str | None = None
    can_reduce: bool = False
    can_copy: bool = False
    numa_node: int | None = None
    bus_id: str | None = None
    source: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    in_network: InNetwork | None = None

    def __post_init__(self) -> None:
        answer = self.in_network and self.in_network.reduce
        object.__setattr__(self, "can_reduce", self.can_reduce or answer == "yes")
        object.__setattr__(self, "can_copy", self.can_copy or self.can_reduce)
        if self.can_reduce and answer not in (None, "yes"):
            stated = InNetwork("yes", "the topology says that it does")
            object.__setattr__(self, "in_network", stated)
        if not self.id:
            raise InputError("a device has an empty id; give every device a name of its own")
        if self.kind not in DEVICE_KINDS:
            raise InputError(
                f"device {self.id!r}: unknown kind {self.kind!r}; expected one of "
                f"{', '.join(DEVICE_KINDS)}"
            )
        if self.family is not None and self.family not in SWITCH_FAMILIES:
            raise InputError(
                f"device {self.id!r}: unknown family {self.family!r}; expected one of "
                f"{', '.join(SWITCH_FAMILIES)}"
            )


@dataclass(frozen=True)
class Link:
    """One direction of a cable or bus from `src` to `dst`, which are device ids.

    `bandwidth_GBps` (1e9 bytes per second) is the total over all `count` PCIe lanes or bonded links
    (1 if nothing states their number, see `is_counted`), and `latency_us` the latency in
    microseconds. `kind` is the medium: nvlink, xgmi, c2c, pcie, smp (between CPUs), network, or
    another word; link if it is not known. `source` says who states the bandwidth; a string becomes
    a notes.Source, which distinguishes assumed rates from stated ones. `extra` has all other fields
    of the link in its file. Raise InputError if the ends are equal, the bandwidth is not above 0,
    the latency is below 0 or the count is below 1.
    """

    src: str
    dst: str
    bandwidth_GBps: Fraction = DEFAULT_BANDWIDTH_GBps
    latency_us: Fraction = DEFAULT_LATENCY_us
    kind: str = "link"
    count: int = 1
    source: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        where = f"link {self.src!r} -> {self.dst!r}"
        for name in ("bandwidth_GBps", "latency_us"):
            value = getattr(self, name)
            if type(value) is not Fraction:
                try:
                    object.__setattr__(self, name, parse_fraction(value))
                except ValueError as error:
                    raise InputError(
                        f"{where}: {name}: {error}; expected a number or a fraction"
                    ) from None
        if type(self.source) is str:
            object.__setattr__(self, "source", read_source(self.source))
        if self.src == self.dst:
            raise InputError(
                f"{where}: it ends where it starts; a link joins two different devices"
            )
        if self.bandwidth_GBps.numerator <= 0:
            raise InputError(
                f"{where}: bandwidth_GBps is {float(self.bandwidth_GBps):g}; expected a number "
                "above 0 "
                "(leave a broken link out)"
            )
        if self.latency_us.numerator < 0:
            raise InputError(
                f"{where}: latency_us is {float(self.latency_us):g}; expected 0 or more"
            )
        if self.count < 1:
            raise InputError(f"{where}: count is {self.count}; expected 1 or more")

    @property
    def is_counted(self) -> bool:
        """Whether the number of lanes or links is known, and not only their sum."""
        return self.extra.get(UNCOUNTED) is not True

    @property
    def is_assumed(self) -> bool:
        """Whether no source states the bandwidth.

        Stated or measured rates may replace an assumed one.
        """
        return isinstance(self.source, Source) and self.source.kind == "assumed"

    @property
    def is_conditional(self) -> bool:
        """Whether results that use the bandwidth hold only if the link really has it.

        So it is if no source states it, or a text gives only the generation and width of PCIe.
        """
        return self.is_assumed or (isinstance(self.source, Source) and self.source.kind == "rated")

    @property
    def is_guess(self) -> bool:
        """Whether the bandwidth is assumed and may be too low as well as too high.

        An assumed limit of a board that the file names can only be too high.
        """
        return self.is_assumed and not (isinstance(self.source, Source) and self.source.by == BOARD)

    @property
    def counted_by(self) -> str:
        """NCCL or RCCL if the bandwidth is the one that library assumes for the link, else "".

        Such a rate is usually below the datasheet's.
        """
        source = self.source
        if isinstance(source, Source) and source.kind in ("counted", "rated"):
            return source.by
        return ""

    def reversed(self) -> Link:
        """Return the link in the other direction."""
        rest = self.bandwidth_GBps, self.latency_us, self.kind, self.count, self.source, self.extra
        return Link(self.dst, self.src, *rest)


def both_directions(link: Link) -> tuple[Link, Link]:
    """Return both directions of a full-duplex cable: `link` and its reverse."""
    return link, link.reversed()
