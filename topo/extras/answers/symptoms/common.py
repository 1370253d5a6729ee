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
# What people write of a run that stands still, and of a model whose output is wrong.
STANDS = (
    r"(?i)\b(?:hangs?|hanging|hung|stuck|freez\w*|froze\w*|deadlock\w*|wedge[sd]?|livelock\w*"
    r"|spin[- ]wait|spins?|spinning|never (?:returns?|completes?|becomes ready|reach\w*))\b"
)
GARBAGE = (
    r"(?i)[`'\"]!{4,}|\b(?:gibberish|garbage(?! collect)|garbled|nonsense|degenerate)\b"
    r"|\bcorrupt\w*\b(?!/incomplete)"
    r"|wrong (?:data|output|results?|values)|silently wrong|repeated[- ]tokens?"
)
# Frames and errors of FlashInfer's kernel that joins allreduce and norm, by multicast.
MNNVL_FRAMES = (
    r"trtllm_mnnvl_(?:allreduce|fused|ar)\w*|flashinfer_trtllm_fused_allreduce_norm"
    r"|(?i:mnnvl)[^\n]{0,80}\b(?:IMA|crash\w*|illegal)\b"
)
