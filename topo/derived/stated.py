"""Replace assumed rates of a machine by rates that the user states."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from ..devices import Device, Link
from ..errors import InputError
from ..exact import fraction_to_json, parse_positive
from ..graph import Topology
from ..hardware import ASSUMED_BY, ASSUMED_SPEED
from ..names import join_first

NIC, NETWORK = "nic", "network"
# Kinds of links whose rate may be given, and NICs.
RATES = ("pcie", NIC, "nvlink", "xgmi", "c2c", "smp")
# Kinds whose rate is given for one link and multiplied by the count.
_BONDED = ("nvlink", "xgmi", "c2c")


def parse_rate(text: str, parameter: str = NETWORK) -> Fraction:
    """Return a rate in GB/s.

    Raise InputError, naming `parameter`, unless the text is a number above 0.
    """
    rate = parse_positive(text)
    if rate is None:
        raise InputError(
            f"{text!r:.40} is not a number of GB/s above 0; write for example 25 or 12.5",
            parameter=parameter,
        )
    return rate


def parse_rates(texts: Iterable[str]) -> dict[str, Fraction]:
    """Return the rates of texts such as `pcie=48`, in GB/s in one direction, by kind (see RATES).

    Raise InputError if a text has another form, names an unknown kind, or repeats a kind.
    """
    rates: dict[str, Fraction] = {}
    for text in texts:
        kind, equals, rate = text.partition("=")
        if not equals or kind not in RATES:
            raise InputError(
                f"rate {text!r:.40}: expected KIND=GBps with one of {', '.join(RATES)}, such as "
                "pcie=48",
                parameter="rate",
            )
        if kind in rates:
            raise InputError(
                f"rate {text!r:.40}: {kind} has been given a rate already; name each kind once",
                parameter="rate",
            )
        rates[kind] = parse_rate(rate, "rate")
    return rates


def state_rates(
    topologies: Sequence[Topology],
    rates: Mapping[str, Fraction],
    source: str = "as given by the user",
) -> list[Topology]:
    """Return the machines with their assumed rates replaced by `rates`, which are from `source`.

    Rates are in GB/s in one direction, keyed by the kinds in RATES or `network`. For NVLink, xGMI
    and NVLink-C2C, a rate is that of one link and is multiplied by the number of bonded links.
    Raise InputError for a rate that no machine can use, because none of them has an assumed rate of
    that kind.
    """
    used: set[str] = set()
    stated = [_state(topology, rates, source, used) for topology in topologies]
    for kind, rate in rates.items():
        if kind not in used:
            names = join_first((topology.name for topology in topologies), 3)
            what = {
                NIC: f"the rates of all NICs of {names} are known",
                NETWORK: f"the rates of all links of {names} into a network are known",
            }.get(kind, f"{names}: no {kind} link has a rate that is only assumed")
            raise InputError(
                f"{kind}={float(rate):g}: {what}; leave it out, or correct rates in topoplan's "
                "JSON",
                parameter=NETWORK if kind == NETWORK else "rate",
            )
    return stated


def _state(
    topology: Topology, rates: Mapping[str, Fraction], source: str, used: set[str]
) -> Topology:
    """Return one machine with the rates, and add the kinds that replaced a rate to `used`."""
    links = tuple(_state_link(link, rates, source, used) for link in topology.links)
    devices = tuple(_state_nic(device, rates, used) for device in topology.devices)
    if links == topology.links and devices == topology.devices:
        return topology
    extra = dict(topology.extra)
    if NETWORK in rates and "notes" in extra:
        extra["notes"] = [n for n in topology.notes if n.kind != "network-rate-assumed"]
    return replace(topology, links=links, devices=devices, extra=extra)


def _state_link(link: Link, rates: Mapping[str, Fraction], source: str, used: set[str]) -> Link:
    rate = rates.get(link.kind)
    if rate is None or not link.is_assumed:
        return link
    used.add(link.kind)
    return replace(
        link,
        bandwidth_GBps=rate * link.count if link.kind in _BONDED else rate,
        source=source,
    )


def _state_nic(device: Device, rates: Mapping[str, Fraction], used: set[str]) -> Device:
    if (
        NIC not in rates
        or device.kind != "nic"
        or ("net_speed_GBps" in device.extra and ASSUMED_BY not in device.extra)
    ):
        return device
    used.add(NIC)
    return replace(
        device,
        extra={
            **{k: v for k, v in device.extra.items() if k not in (ASSUMED_SPEED, ASSUMED_BY)},
            "net_speed_GBps": fraction_to_json(rates[NIC]),
        },
    )
