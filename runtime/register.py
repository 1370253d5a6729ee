"""Makes the backend "topo" known to torch: `import topoplan.runtime.register`, or nothing at all.

Where topoplan is installed, torch imports this module itself (entry point in the group torch.backends), so an unmodified
script need only say init_process_group("topo"). Nothing else is imported until then.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from .backend import NAME

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def register() -> None:
    """Register the backend, if that was not done. Whatever goes wrong is a warning: `import torch` must not fail of it."""
    try:
        import torch.distributed as dist

        from .torch_version import check_torch

        check_torch()
        if dist.is_available() and NAME.upper() not in dist.Backend._plugins:
            dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        warnings.warn(f"topoplan could not register its backend {NAME!r} with torch: {error}", stacklevel=2)


def _create(place: Any, options: Any) -> ProcessGroup:
    """What torch calls to make a group."""
    from .backend.process_group import TopoGroup

    return TopoGroup(place, options)


register()
