"""Registration of the backend "topo" with torch: `import topoplan.runtime.register`, or no import.

If topoplan is installed, an unmodified script need only call init_process_group("topo"). From torch
2.15 on, torch loads this module when it meets that name for the first time (entry point in the
group torch.distributed.backends); older ones load it with `import torch` (see backend/autoload.py).
"""

from .backend.registration import register

__all__ = ["register"]
register()
