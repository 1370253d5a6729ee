"""The alternatives that topo-judge names, searched once for each machine: several tests judge what
was measured on the same one.
"""

from __future__ import annotations

from functools import cache

from topoplan.synth.ir.collective import Collective
from topoplan.synth.judge.options import Options, find_options
from topoplan.topo.routes import Router

_ROUTERS: dict[str, Router] = {}


def find_options_once(collective: Collective, router: Router) -> Options:
    """Return what `find_options` does, from the first search on an equal machine."""
    return _find(collective, _ROUTERS.setdefault(router.topology.fingerprint, router))


@cache
def _find(collective: Collective, router: Router) -> Options:
    return find_options(collective, router)
