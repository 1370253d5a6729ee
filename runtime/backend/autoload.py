"""The module that torch loads with `import torch` (entry point in the group torch.backends): needed
before torch 2.15 only.

A package cannot say for which torch an entry point is meant, so torch 2.15 loads this too. It looks
backends up by their name (group torch.distributed.backends), so there nothing is left to do, and
nothing more is imported.
"""

from __future__ import annotations


def register_with_older_torch() -> None:
    """Register the backend "topo" where torch does not look backends up by their name."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "_ensure_backend_registered"):
        from .. import register

        register.register()
