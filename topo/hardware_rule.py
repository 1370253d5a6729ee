"""The rule by which hardware chooses routes, before there is a topology to apply it to.

A Router (routes.py) is a rule on one topology; the hardware's is least latency, through no other
GPU.
"""

from .graph import Topology
from .routes import Router

# The hardware's own rule, on no topology yet; `HARDWARE.on(topology)` is its router.
HARDWARE = Router(Topology("none", (), ()))
