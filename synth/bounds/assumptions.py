"""What a bound assumes: the rates of links that its certificate uses and that no source states.

A certificate, the proof of a bound, is a cut or prices on links. It depends on the rates of the
links of its cut, or of those that have prices, and on no others. A link's `source` says who states
its rate, or that it is assumed. An assumed rate is a guess (`Link.is_guess`) if the true one may be
higher as well as lower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from ...topo.exact import parse_fraction

if TYPE_CHECKING:
    from ...topo.graph import Link, Topology

# The links of each kind in words, and whether their rate is that of one of several bonded links.
_WORDS = {
    "pcie": ("PCIe links have", False),
    "smp": ("the link between CPUs has", False),
    "network": ("links into the network have", False),
    "nvlink": ("each NVLink has", True),
    "xgmi": ("each xGMI link has", True),
    "c2c": ("each NVLink-C2C port has", True),
}
# Kinds of notes on NVLinks that a file leaves out.
_LEFT_OUT = ("nvlinks-left-out", "no-nvlink-elements")
_NO_NVLINKS = "its GPUs have no other NVLinks"
# Most assumptions to list in a sentence.
_MAX_LISTED = 3


@dataclass(frozen=True)
class Assumption:
    """A rate that no source states: `what` in words with its GB/s, and `why` it was taken.

    `is_guess` is false if it is a limit of the hardware: the datasheet's rate of a board that the
    file or the user names. Such a bound holds whatever slower slot the board is in. It is false as
    well for the most that was measured on a link: the true rate is no lower, and hardly higher.
    """

    what: str
    why: str
    is_guess: bool

    def __str__(self) -> str:
        return f"{self.what} ({self.why})" if self.why else self.what


class Certified(Protocol):
    """A bound with its proof: a cut, or prices on links."""

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The proof, as certificate.py describes it."""
        ...


# The latest arguments of `find_links`, and its result: the text of a bound asks for them twice.
# A certificate is a dictionary, so it is known by its identity.
_latest: list[tuple[Mapping[str, Any], Topology, list[Link]]] = []


def find_links(certificate: Mapping[str, Any], topology: Topology) -> list[Link]:
    """Return the links that a bound's certificate depends on: out of its cut, or with a price.

    Of parallel links between two devices one is listed. The latest result is cached by identity of
    the arguments.
    """
    for known, machine, links in _latest:
        if known is certificate and machine is topology:
            return links
    links = _list_links(certificate, topology)
    _latest[:] = [(certificate, topology, links)]
    return links


def _list_links(certificate: Mapping[str, Any], topology: Topology) -> list[Link]:
    if "inside" in certificate:
        inside = set(certificate["inside"])
        out = (x for x in topology.links if x.src in inside and x.dst not in inside)
        return list({(x.src, x.dst): x for x in out}.values())
    prices = certificate.get("prices", ())
    pairs = [(a, b) for a, b, price in prices if parse_fraction(price) > 0]
    link_of = {(x.src, x.dst): x for x in topology.links}
    # A device that computes is priced as one with a GPU: its links have the GPU's id there.
    alike: dict[str, list[str]] = {}
    for device, gpu in certificate.get("joined", ()):
        alike.setdefault(gpu, []).append(device)
    found: dict[tuple[str, str], Link] = {}
    for a, b in pairs:
        for pair in _spell(a, b, alike):
            # Certificates of symmetric machines price one direction for both.
            link = link_of.get(pair) or link_of.get(pair[::-1])
            if link is not None:
                found.setdefault(pair, link)
    return list(found.values())


def _spell(a: str, b: str, alike: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    for src in (a, *alike.get(a, ())):
        for dst in (b, *alike.get(b, ())):
            yield src, dst


def list_assumptions(bound: Certified, topology: Topology) -> tuple[Assumption, ...]:
    """Return what a bound on a topology assumes without a source, each once.

    That is the rates that it depends on, and that GPUs have no other NVLinks than the topology's,
    if one of the topology's notes says that its file leaves them out.
    """
    left_out = next((note for note in topology.notes if note.kind in _LEFT_OUT), None)
    missing = () if left_out is None else (Assumption(_NO_NVLINKS, str(left_out), True),)
    return (*missing, *_describe_assumed(find_links(bound.certificate, topology)))


def _describe_assumed(links: Iterable[Link]) -> tuple[Assumption, ...]:
    """Return the assumptions behind the rates of links, each once; stated rates are none.

    A rate that was seen to cross a link, but not shown to be its limit, is one, and so is NCCL's
    count for a generation and width that a text states: the wire carries more.
    """
    found: dict[Assumption, None] = {}
    for link in links:
        is_least = _is_least(link)
        if link.is_conditional or is_least:
            words, is_bonded = _WORDS.get(link.kind, (f"{link.kind} links have", False))
            GBps = link.bandwidth_GBps / (link.count if is_bonded else 1)
            why = str(link.source).removeprefix("assumed").removeprefix(":").strip()
            if is_least:
                why = f"at least about that was {why}"
            what = f"{words} {float(GBps):g} GB/s"
            found[Assumption(what, why, link.is_guess)] = None
    return tuple(found)


def _is_least(link: Link) -> bool:
    """Return whether a link is believed to have the most that was measured, a lower bound."""
    measured = link.extra.get("measured")
    return (
        link.extra.get("believed") == "measured"
        and isinstance(link.extra.get("declared"), Mapping)  # else it was a placeholder
        and isinstance(measured, Mapping)
        and measured.get("limit") is False
    )


def join_assumptions(assumptions: Iterable[Assumption]) -> str:
    """Return " if A and B", to be written after a rate; empty without assumptions."""
    listed = list(dict.fromkeys(each.what for each in assumptions))
    if len(listed) > _MAX_LISTED:
        listed = [*listed[:_MAX_LISTED], "so on"]
    return f" if {' and '.join(listed)}" if listed else ""


def explain_assumptions(assumptions: Iterable[Assumption]) -> list[str]:
    """Return a line for each assumption: that no source states it, and why it was taken."""
    return [f"nothing states that {each}" for each in dict.fromkeys(assumptions)]


def scale_guesses(topology: Topology, factor: Fraction) -> Topology | None:
    """Return the topology with all guessed rates multiplied by `factor`; None if it has none."""
    if not any(link.is_guess for link in topology.links):
        return None
    return replace(
        topology,
        links=tuple(
            replace(x, bandwidth_GBps=x.bandwidth_GBps * factor) if x.is_guess else x
            for x in topology.links
        ),
    )
