"""Replace assumed rates of a machine by rates, or by those of a GPU, that the user states."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fractions import Fraction

from ..between_cpus import follow_era
from ..boards import BOARDS, Board, find_board
from ..devices import Device, Link
from ..errors import InputError
from ..exact import fraction_to_json, parse_positive
from ..graph import Topology
from ..hardware import ASSUMED_BY, ASSUMED_SPEED, LATENCY_us
from ..names import join_first
from ..notes import assumed, read_source
from ..port_rate import set_port_rate
from ..presets import preset

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

    Rates are in GB/s in one direction, keyed by the kinds in RATES or `network`. The ports of a
    preset of several boxes or hosts take the rate of `network`, or of `nic`, too. For NVLink, xGMI
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


def state_board(topologies: Sequence[Topology], name: str) -> list[Topology]:
    """Return the machines with their assumed rates replaced by those of the GPU called `name`.

    These are its PCIe link, its NVLinks or xGMI links, NVLink-C2C, and the NICs of its machines;
    they stay assumptions, which `state_rates` replaces. GPUs without a name get this one. Raise
    InputError if the table of boards has no such name, if the GPU cannot have the links of a
    machine, or if nothing is assumed.
    """
    board = find_board(name)
    if board is None:
        near = get_close_matches(name.upper(), [b.name.upper() for b in BOARDS], 5, 0.4)
        known = near or [b.name for b in BOARDS[:12]]
        raise InputError(
            f"{name!r:.60}: not in the table of GPUs; expected a name such as {', '.join(known)}; "
            "for others give rates",
            parameter="gpu",
        )
    if not any(link.is_assumed for topology in topologies for link in topology.links):
        raise InputError(
            f"{board.name}: {join_first((t.name for t in topologies), 3)} has no rate that is only "
            "assumed; leave it out",
            parameter="gpu",
        )
    return [follow_era(_rate_as(topology, board), board.pcie.generation) for topology in topologies]


def _rate_as(topology: Topology, board: Board) -> Topology:
    """Return a machine whose assumed rates are those of a board.

    Raise InputError if one of its GPUs has the name of another.
    """
    for gpu in topology.ranks:
        name = str(topology.by_id[gpu].extra.get("name") or "")
        if find_board(name) not in (None, board):
            raise InputError(
                f"{topology.name} says that {gpu} is {name!r:.60}, not {board.name}; leave it out",
                parameter="gpu",
            )
    extra = dict(topology.extra)
    if "notes" in extra:
        extra["notes"] = [note for note in topology.notes if note.kind != "board-assumed"]
    return replace(
        topology,
        devices=tuple(_name_as(device, board) for device in topology.devices),
        links=tuple(_rate_link_as(topology, link, board) for link in topology.links),
        extra=extra,
    )


def _name_as(device: Device, board: Board) -> Device:
    """Return a GPU with the board's name unless it has one, and a NIC with its assumed rate."""
    extra = dict(device.extra)
    if device.kind == "gpu":
        extra.setdefault("name", board.name)
    elif ASSUMED_SPEED in extra and board.nic_Gbps:
        extra[ASSUMED_SPEED] = fraction_to_json(Fraction(board.nic_Gbps, 8))
        extra[ASSUMED_BY] = f"{board.nic_Gbps} Gb/s, as machines with {board.name} have"
    return replace(device, extra=extra)


def _rate_link_as(topology: Topology, link: Link, board: Board) -> Link:
    """Return a link with the board's rate if its own is assumed.

    Raise InputError if the board has fewer NVLinks or xGMI links than the link bundles.
    """
    kinds = {topology.by_id[link.src].kind, topology.by_id[link.dst].kind}
    if not link.is_assumed:
        return link
    if link.kind in ("nvlink", "xgmi"):
        if "gpu" in kinds and (link.kind != board.kind or link.count > board.wires):
            raise InputError(
                f"{board.name} has {board.wires or 'no'} {board.kind} links, and {link.src} - "
                f"{link.dst} of {topology.name} is {link.count} x {link.kind}; name another GPU",
                parameter="gpu",
            )
        rate, what, kind = board.wire_GBps * link.count, "a link", link.kind
    elif link.kind in ("pcie", "c2c") and kinds == {"gpu", "cpu"} and board.c2c_GBps:
        rate, what, kind = board.c2c_GBps, "of NVLink-C2C", "c2c"
    elif link.kind in ("pcie", "c2c"):
        rate, what, kind = board.pcie.bandwidth_GBps, f"by PCIe {board.pcie}", "pcie"
    else:
        return link
    one = float(rate / link.count)
    return replace(
        link,
        kind=kind,
        bandwidth_GBps=rate,
        latency_us=link.latency_us if kind == link.kind else LATENCY_us[kind],
        source=assumed(f"{one:g} GB/s {what}, by the GPU: {board.name}"),
    )


def _state(
    topology: Topology, rates: Mapping[str, Fraction], source: str, used: set[str]
) -> Topology:
    """Return one machine with the rates, and add the kinds that replaced a rate to `used`."""
    if _is_preset(topology):
        # The network between a preset's boxes is an example, so every rate replaces its own.
        kind = NIC if NIC in rates and not _has_nics(topology) else NETWORK
        if kind in rates and (ported := set_port_rate(topology, rates[kind], source)) is not None:
            used.add(kind)
            topology = ported
    links = tuple(_state_link(link, rates, source, used) for link in topology.links)
    devices = tuple(_state_nic(device, rates, used) for device in topology.devices)
    if links == topology.links and devices == topology.devices:
        return topology
    extra = dict(topology.extra)
    if NETWORK in rates and "notes" in extra:
        extra["notes"] = [n for n in topology.notes if n.kind != "network-rate-assumed"]
    return replace(topology, links=links, devices=devices, extra=extra)


def _is_preset(topology: Topology) -> bool:
    """Return whether a topology is a preset as it is built by its name."""
    try:
        return preset(topology.name) == topology
    except InputError:
        return False


def _has_nics(topology: Topology) -> bool:
    return any(device.kind == "nic" for device in topology.devices)


def _state_link(link: Link, rates: Mapping[str, Fraction], source: str, used: set[str]) -> Link:
    rate = rates.get(link.kind)
    # What a text says of a link is replaced by a rate in figures, and by no assumption.
    is_figure = read_source(source).kind == "stated"
    if rate is None or not (link.is_conditional if is_figure else link.is_assumed):
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
