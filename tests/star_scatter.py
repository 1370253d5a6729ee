"""A scatter with a message that ends late where links are shared equally."""

from __future__ import annotations

from fractions import Fraction

from topoplan.synth.cost.affine import tighten
from topoplan.synth.ir.collective import Chunk, Collective
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.ir.transfers import Transfer, Transfers
from topoplan.topo.graph import Device, Link, Topology

# GPU 0 reaches the switch at 2 GB/s and GPU 1 from there at 1 GB/s.
STAR = Topology(
    "star",
    (*(Device(f"gpu{rank}", "gpu") for rank in range(5)), Device("switch", "switch")),
    (
        Link("gpu0", "switch", Fraction(2), Fraction(0)),
        Link("switch", "gpu1", Fraction(1), Fraction(0)),
        *(Link("switch", f"gpu{rank}", Fraction(2), Fraction(0)) for rank in (2, 3, 4)),
    ),
)


def scatter_over_star() -> Schedule:
    """Return a scatter of one large message and three small ones, which leave GPU 0 by one link."""
    shares = [Fraction(1, 2), *[Fraction(1, 6)] * 3]
    return tighten(
        Schedule(
            Collective("scatter", 5, root=0),
            "by hand",
            tuple(Chunk(share, source=0, target=rank + 1) for rank, share in enumerate(shares)),
            Transfers.of(
                [Transfer(0, 0, rank + 1, rank, "copy", ("switch",)) for rank in range(4)]
            ),
            (),
        ),
        STAR,
    )
