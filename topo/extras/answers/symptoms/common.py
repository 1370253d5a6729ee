"""Where threads are, and patterns that symptoms of several kinds share."""

from __future__ import annotations

NCCL = "https://github.com/NVIDIA/nccl/issues/"
TESTS = "https://github.com/NVIDIA/nccl-tests/issues/"
TORCH = "https://github.com/pytorch/pytorch/issues/"
VLLM = "https://github.com/vllm-project/vllm/issues/"
# What says that a collective did not end.
HANGS = (
    r"Watchdog caught collective operation timeout|Timeout at NCCL work"
    r"|watchdog got stuck for \d+ seconds|Heartbeat monitor timed out"
    r"|Timed out waiting \d+ ?ms for (?:send|recv) operation"
    r"|WorkNCCL::checkTimeout|ProcessGroupNCCL::ncclCommWatchdog"
)
# What people write of a run that stands still.
STANDS = (
    r"(?i)\b(?:hangs?|hanging|hung|stuck|freez\w*|froze\w*|deadlock\w*|wedge[sd]?|livelock\w*"
    r"|spin[- ]wait|spins?|spinning|never (?:returns?|completes?|becomes ready|reach\w*))\b"
)
