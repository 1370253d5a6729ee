"""Symptoms of the program: ranks that call different things."""

from __future__ import annotations

from ..symptom import Symptom, When
from .common import HANGS, NCCL, TORCH, VLLM

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "ranks-disagree",
        (
            When(
                (
                    r"Detected mismatch between collectives on ranks|Mismatched collective detected"
                    r"|collective mismatch error|Error type: (?:SIZE_OR_SYNTAX|COLLECTIVE_TYPE)_MIS"
                    r"|Communicator ranks have different \w+ operation counts"
                    r"|COLL_SIZE_MISMATCH",
                )
            ),
        ),
        "ranks call different collectives, in another order or with other sizes",
        "look for what differs by rank: branches, batches of different numbers, unused parameters, "
        "a rank that evaluates or saves alone; TORCH_DISTRIBUTED_DEBUG=DETAIL names the first call",
        "high",
        f"{NCCL}296",
    ),
    Symptom(
        "unused-parameters",
        (
            When(
                (r"Expected to have finished reduction in the prior iteration before starting",),
            ),
        ),
        "parameters of the model took no part in the loss on a rank (a branch that is not used, an "
        "output that is left out), so DDP still waits for their gradients",
        "let all outputs take part in the loss on each rank, or find_unused_parameters=True; "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters",
        "high",
        "https://github.com/WongKinYiu/yolov9/issues/559",
    ),
    Symptom(
        "cpu-tensors",
        (
            When(
                (
                    r"No backend type associated with device type cpu"
                    r"|Tensors must be CUDA and dense"
                    r"|FSDP CPU offloading requires backend supporting cpu",
                )
            ),
        ),
        "a collective is called with tensors in the host's memory, which NCCL does not send: "
        "offloaded parameters, gradients that are clipped there, a tensor made without a device",
        'start the group with both (init_process_group("cpu:gloo,cuda:nccl")), move the tensor to '
        "the GPU, or leave the offload out",
        "high",
        f"{TORCH}148532",
    ),
    Symptom(
        "forked",
        (When((r"Cannot re-initialize CUDA in forked subprocess",)),),
        "the program used CUDA before it made its worker processes by fork, and these cannot use "
        "it then",
        "make them by spawn (VLLM_WORKER_MULTIPROC_METHOD=spawn, mp.set_start_method), with the "
        'start below if __name__ == "__main__", and touch CUDA only in them',
        "high",
        f"{VLLM}7151",
    ),
    Symptom(
        "capture-broken",
        (
            When(
                (
                    r"operation not permitted when stream is capturing"
                    r"|failed due to a previous error during capture"
                    r"|cudaErrorStreamCapture(?:Unsupported|Invalidated|Merge)",
                )
            ),
        ),
        "a call that a CUDA graph cannot hold was made while one was captured, here or by another "
        "thread or device; NCCL's calls after it only report it",
        "start without graphs to see the first error (vLLM --enforce-eager, SGLang "
        "--disable-cuda-graph), and update torch, NCCL or RCCL",
        "medium",
        "https://github.com/pie-project/pie/issues/499",
    ),
    Symptom(
        "zero3-experts",
        (
            When(
                (
                    r"(?i)mixtral|\bmoe\b|-a\d+b\b|experts\b",
                    r"(?i)zero[-_ ]?(?:stage[-_ :]*)?3|[\"']?stage[\"']?: 3\b|stage3_"
                    r"|Invalidate trace cache @ step",
                    rf"{HANGS}|(?i:\b(?:hang|hung|stuck|freez)|NCCL[^\n]{{0,12}} time(?:d )?out)"
                    r"|卡住",
                ),
                (r"NCCL WARN|No route|Connection refused",),
            ),
        ),
        "with ZeRO-3 the ranks gather the experts that their own tokens need, so that they wait "
        "for each other in different collectives",
        "make the block of experts a leaf (deepspeed.utils.set_z3_leaf_modules(model, [ITS "
        "CLASS])), let all experts take part in each step, or use ZeRO-2",
        "medium",
        "https://github.com/deepspeedai/DeepSpeed/issues/5066",
    ),
    Symptom(
        "extension-lock",
        (
            When(
                (r"as PyTorch extensions root\.\.\.",),
                (
                    r"Loading extension module|Time to load|[Bb]uild|modifications detected"
                    r"|Traceback|[Ee]rror",
                ),
            ),
            When((r"torch/utils/file_baton\.py",)),
        ),
        "the program waits for another process to build an extension of torch, by a file named "
        "lock that a process left which was ended while it built",
        "end all of its processes, delete ~/.cache/torch_extensions (or TORCH_EXTENSIONS_DIR), and "
        "build once by one process before the ranks start; keep it off a shared home",
        "medium",
        f"{TORCH}189245",
    ),
    Symptom(
        "engine-not-ready",
        (When((r"Timed out waiting for engine(?:s to send| core processes to start)",)),),
        "vLLM's engine was not ready in time (600 s): large weights from slow storage, kernels "
        "that are compiled at the first start, or workers that hang",
        "set VLLM_ENGINE_READY_TIMEOUT_S=3600, and see whether the workers' log goes on; if it "
        "stands still, look there",
        "medium",
        "https://github.com/vllm-project/vllm/pull/35616",
    ),
    Symptom(
        "truncated",
        (When((r"message truncated ?: receiving \d+ bytes instead of \d+",)),),
        "two ranks expect messages of different sizes: they call with different sizes, or have "
        "other versions or settings of NCCL",
        "compare NCCL's version and NCCL_ variables of all hosts (BUFFSIZE, P2P_NET_CHUNKSIZE, "
        "ALGO), then the sizes of the call",
        "medium",
        f"{NCCL}1328",
    ),
    Symptom(
        "device-guessed",
        (
            When(
                (
                    r"devices? used by this process (?:are|is) currently unknown"
                    r"|Guessing device ID based on global rank",
                )
            ),
        ),
        "the program has not said which GPU a rank uses, and PyTorch guesses by its number; where "
        "that is another one, the barrier hangs",
        "call torch.cuda.set_device(LOCAL_RANK), and pass device_id to init_process_group",
        "low",
        "https://github.com/pytorch/pytorch/pull/134617",
    ),
    Symptom(
        "mnnvl-healthy",
        (
            When(
                (r"MNNVL (?:\S+ )?busId \S+ [^\n]{0,200}state 3 healthMask 0x(?:aa|0+)\b",),
                (r"Init COMPLETE", r"healthMask 0x(?!aa\b|0+\b)"),
            ),
        ),
        "the NVLink fabric of the GPUs is registered and well (state 3, all four faults false), so "
        "what stops the start is elsewhere",
        "see whether fewer ranks start (large NVLink domains crash in some versions), try "
        "NCCL_MNNVL_ENABLE=0, and look at IMEX and at the last line of each rank",
        "low",
        f"{NCCL}2186",
    ),
)
