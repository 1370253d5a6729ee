"""Lower bounds on the time of a collective on a topology, each with the certificate that proves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..topo.exact import fraction_to_json, parse_fraction


@dataclass(frozen=True)
class Bound:
    """No schedule takes less than `s_per_GB` seconds for each GB of buffer; `certificate` proves it.

    `kind` is "cut" or "prices"; see synth/certificate.py for what each says and how it is checked.
    """

    s_per_GB: Fraction
    kind: str
    certificate: Mapping[str, Any] = field(hash=False)

    @property
    def algbw_GBps(self) -> Fraction:
        """The greatest algorithm bandwidth that the bound leaves."""
        return 1 / self.s_per_GB

    def to_json(self) -> dict[str, Any]:
        """`s_per_GB`, `kind` and `certificate`."""
        return {"s_per_GB": fraction_to_json(self.s_per_GB), "kind": self.kind, "certificate": dict(self.certificate)}

    @classmethod
    def from_json(cls, data: Any) -> Bound:
        """Read `to_json`'s object; ValueError, KeyError or TypeError where it is not one."""
        return cls(parse_fraction(data["s_per_GB"]), str(data["kind"]), dict(data["certificate"]))
