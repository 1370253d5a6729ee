"""The rule by which hardware chooses routes, before there is a topology."""

from .graph import Topology
from .routes import Router

# The hardware's own rule, on no topology yet; `HARDWARE.on(topology)` is its router.
HARDWARE = Router(Topology("none", (), ()))
