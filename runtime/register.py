"""Registration of the backend "topo" with torch: `import topoplan.runtime.register`, or no import.

If topoplan is installed, an unmodified script need only call init_process_group("topo"). From torch
2.15 on, torch loads this module when it meets that name for the first time (entry point in the
group torch.distributed.backends); older ones load it with `import torch` (see backend/autoload.py).
Nothing else is imported until a group is made.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from .backend import NAME

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def register() -> None:
    """Register the backend once; a second call does nothing.

    Any failure is a warning: `import torch` must not fail because of it.
    """
    try:
        import torch.distributed as dist

        if not dist.is_available() or NAME.upper() in dist.Backend._plugins:
            return
        from .ranks.groups import check_torch

        check_torch()
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        warnings.warn(
            f"topoplan could not register its backend {NAME!r} with torch: {error}", stacklevel=2
        )


def _create(place: Any, options: Any) -> ProcessGroup:
    from .backend.process_group import TopoGroup

    return TopoGroup(place, options)


register()
