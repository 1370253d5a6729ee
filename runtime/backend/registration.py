"""Registration of the backend "topo" with torch; nothing else is imported until a group is made."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from . import NAME

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def register() -> None:
    """Register the backend "topo" with torch.distributed; a second call does nothing.

    Any failure becomes a warning: `import torch` must not fail because of it.
    """
    try:
        import torch.distributed as dist

        if not dist.is_available() or NAME.upper() in dist.Backend._plugins:
            return
        from ..ranks.groups import check_torch

        check_torch()
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        warnings.warn(
            f"topoplan could not register its backend {NAME!r} with torch: {error}", stacklevel=2
        )


def _create(place: Any, options: Any) -> ProcessGroup:
    from .process_group import TopoGroup

    return TopoGroup(place, options)
