"""Symptoms of the program: ranks that call different things."""

from __future__ import annotations

from ..symptom import Symptom, When
from .common import HANGS, NCCL, STANDS, TORCH, VLLM

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "ranks-disagree",
        (
            When(
                (
                    r"Detected mismatch between collectives on ranks|Mismatched collective detected"
                    r"|collective mismatch error|Error type: (?:SIZE_OR_SYNTAX|COLLECTIVE_TYPE)_MIS"
                    r"|Communicator ranks have different \w+ operation counts"
                    r"|COLL_SIZE_MISMATCH|op\.preamble\.length <= op\.nbytes"
                    r"|Received data size doesn't match expected size",
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
        "fd-between-hosts",
        (When((r"failed to send fd",)),),
        "torch's symmetric memory hands memory on by file descriptors, which works within one host "
        "alone, and the group spans several (or containers)",
        'use it within a host; between hosts symm_mem.set_backend("NVSHMEM"), or GPUs of one '
        "NVLink fabric with IMEX",
        "medium",
        f"{TORCH}171495",
    ),
    Symptom(
        "empty-step",
        (
            When(
                (
                    r"coordinate_batch_across_dp|(?i:zero[- ]token)[^\n]{0,60}\b(?:rank|step)",
                    rf"{HANGS}|(?i:\b(?:hangs?|hanging|hung|stuck|deadlock\w*)\b)",
                ),
                (r"NCCL WARN",),
            ),
        ),
        "with data and expert parallelism in vLLM a rank that has no tokens in a step leaves it "
        "out, while the others wait for it in a collective",
        "use a release where each idle rank takes part (vLLM's pull requests 44601 and "
        "53578), else --data-parallel-size 1, or no expert parallelism",
        "low",
        f"{VLLM}43547",
    ),
    Symptom(
        "weights-out-of-order",
        (
            When(
                (
                    r"full_tensor\(|_streaming_iter|get_per_tensor_param",
                    r"(?i)send_weights|weight[- _](?:sync|transfer|update)|update_weights",
                    rf"{HANGS}|(?i:\b(?:hangs?|hanging|hung|stuck|deadlock\w*)\b)",
                ),
            ),
        ),
        "while rank 0 sends gathered weights to the server, the other ranks already gather the "
        "next ones, so that collectives of two groups wait for each other",
        "gather all weights on all ranks before the sending (or synchronize after each gather), "
        "and update TRL or verl",
        "medium",
        "https://github.com/huggingface/trl/issues/7103",
    ),
    Symptom(
        "weight-transfer-api",
        (
            When(
                (
                    r"cannot import name 'NCCLTrainerSendWeightsArgs'"
                    r"|NCCLWeightTransferEngine' has no attribute 'trainer_(?:init|send_weights)'"
                    r"|No module named 'vllm\.distributed\.weight_transfer",
                )
            ),
        ),
        "the trainer does not fit this vLLM: the calls that send it weights came with 0.16 to "
        "0.21, and those on the trainer's side changed in 0.28",
        "use the versions that fit (TRL names the range it supports), and the same vLLM on the "
        "trainer and the server",
        "high",
        "https://github.com/huggingface/trl/pull/7001",
    ),
    Symptom(
        "packed-weights",
        (
            When(
                (
                    r"[\"'`]?\bpacked\b[\"'`]?(?: ?[:=] ?True)?",
                    r"NCCLWeightTransfer|weight_transfer|update_weights|init_weight_transfer_engine",
                    STANDS,
                    r"(?i)vllm[^\n]{0,16}\b0\.(?:2[89]|3\d)\b|\b0\.28\b",
                ),
            ),
        ),
        "since vLLM 0.28 the setup of the transfer says whether weights are sent packed, no longer "
        "each update: the trainer packs, the server does not, and both wait",
        "pass packed=True in the init info (NCCLWeightTransferInitInfo), or use a trainer that "
        "supports this vLLM",
        "medium",
        "https://github.com/NovaSky-AI/SkyRL/pull/2114",
    ),
    Symptom(
        "ray-group",
        (
            When(
                (
                    r"ray\.util\.collective|init_collective_group|nccl_checkpoint_engine",
                    STANDS,
                ),
                (r"NCCL WARN",),
            ),
            When((r"Unable to meet other processes at the rendezvous store",)),
        ),
        "the ranks do not meet in the first group of ray.util.collective, by which verl sends "
        "weights: an actor is late or named another group, or they race, which is not mended yet",
        "start again on a fresh Ray cluster, see that trainer and rollout both reach the call, and "
        "try another checkpoint engine (nixl, mooncake)",
        "low",
        "https://github.com/verl-project/verl/issues/6967",
    ),
    Symptom(
        "nonblocking-start",
        (
            When(
                (
                    r"\bdevice_id\b",
                    r"init_process_group|eager init",
                    r"(?i)(?:torch|pytorch)[^\n]{0,12}\b2\.7\.0\b|nccl[^\n]{0,12}\b2\.26\b",
                    STANDS,
                ),
                (r"NCCL WARN", r"(?i)torch(?:==|[: ]+v?)2\.(?:7\.[1-9]|[89]\.|\d\d)"),
            ),
        ),
        "PyTorch 2.7.0 starts NCCL without waiting where device_id is passed to "
        "init_process_group, with which NCCL 2.26 hangs now and then",
        "set TORCH_NCCL_USE_COMM_NONBLOCKING=0, or use PyTorch 2.7.1 or later",
        "medium",
        f"{TORCH}153960",
    ),
    Symptom(
        "ranks-diverge",
        (
            When(
                (
                    r"(?i)\b(?:hangs?|hanging|hung|stuck|deadlock\w*|watchdog)\b",
                    r"enable-dp-attention|speculative[-_](?:algorithm|config)|DSPARK|\bEAGLE3?\b"
                    r"|\bMTP\b|num_speculative_tokens",
                ),
                (r"NCCL WARN", r"[Oo]ut[ OfM]*[Oo]f[Mm]emory|out of memory", r"\bXid\b"),
            ),
        ),
        "with speculative decoding or attention by data parallelism ranks can take different "
        "branches (samples that differ, empty batches, the end of the longest context), so that "
        "some call a collective and others do not",
        "try without speculative decoding, or with as many data-parallel as tensor-parallel ranks, "
        "and a newer release of the server; py-spy dump on each rank shows who waits where",
        "low",
        "https://github.com/sgl-project/sglang/issues/28915",
    ),
    Symptom(
        "ras-crash",
        (
            When(
                (
                    r"\bras(?:Msg|Coll|Client|Net|Peers|Sock)\w+",
                    r"SIGSEGV|[Ss]egmentation fault|signal 11|Process received signal",
                ),
            ),
            When(
                (
                    r"(?i)\bRAS\b[^\n]{0,60}(?:segfault|segmentation|crash)"
                    r"|(?i:segfault|segmentation fault)[^\n]{0,40}\bRAS\b",
                )
            ),
        ),
        "NCCL's service that answers questions about a running job (RAS) crashes the process, as "
        "versions 2.26 to 2.29 can while communicators are made",
        "set NCCL_RAS_ENABLE=0, or use a later NCCL, and do not ask the service while a job starts",
        "high",
        f"{NCCL}1996",
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
        "forked",
        (When((r"Cannot re-initialize CUDA in forked subprocess",)),),
        "a process that had used CUDA forked, and the child cannot use it",
        "start processes by spawn (multiprocessing.set_start_method, vLLM: "
        "VLLM_WORKER_MULTIPROC_METHOD=spawn) under if __name__ == '__main__', and call nothing of "
        "torch.cuda before",
        "high",
        f"{VLLM}7151",
    ),
    Symptom(
        "window-first",
        (
            When((r"Failed to window register segment",), (r"(?i)captur",)),
            When((r"Register symmetric memory with an implicitly created nccl comm",)),
        ),
        "torch's symmetric memory by NCCL is the first thing that the group does, and NCCL's "
        "communicator is not made yet",
        "pass device_id to init_process_group (or new_group), which makes it at once, or do one "
        "collective and a barrier in that group before rendezvous()",
        "medium",
        f"{TORCH}188567",
    ),
    Symptom(
        "window-abort",
        (
            When(
                (
                    r"Failed to deregister segment handle"
                    r"|NCCL WARN Deregister: Could not find handle",
                )
            ),
        ),
        "torch before 2.13 gives symmetric memory back by the wrong call when it aborts a "
        "communicator, so that the process ends by a signal; why it was aborted is another matter",
        "look for the first error above it; end runs by destroy_process_group(), and use a later "
        "torch",
        "medium",
        f"{TORCH}181610",
    ),
    Symptom(
        "window-in-capture",
        (
            When((r"graph_pool_id is not set under graph capture",)),
            When(
                (
                    r"register_comm_window|ncclCommWindowRegister|Failed to window register",
                    r"(?i)captur(?:e|ing)\b|cudagraph_utils",
                    r"NCCL error|unhandled cuda error|ncclUnhandledCudaError",
                )
            ),
        ),
        "NCCL's symmetric memory and the capture of CUDA graphs do not fit here: memory is to be "
        "registered while a graph is captured, which is not allowed, or its pool is not known",
        "unset VLLM_USE_NCCL_SYMM_MEM, or start without graphs (--enforce-eager), or update vLLM",
        "high",
        f"{VLLM}54626",
    ),
    Symptom(
        "symmetric-graphs",
        (
            When(
                (
                    r"enable-symm-mem|VLLM_USE_NCCL_SYMM_MEM ?= ?1|NCCL_SYMMETRIC\b",
                    r"(?i)cuda[-_ ]?graph",
                    r"(?i)\b(?:wrong|garbage|corrupt\w*|incorrect|accuracy|repeated token|"
                    r"accept_rate)",
                ),
                (
                    r"Traceback|NCCL WARN|illegal memory access|out of memory",
                    r"(?i)\b(?:hangs?|hung|stuck|deadlock\w*|crash\w*)\b",
                ),
            ),
        ),
        "in CUDA graphs collectives on NCCL's symmetric memory can read their input before it is "
        "written (NCCL 2.28 to 2.30.4), or use buffers that the server has given to others",
        "use NCCL 2.30.7 or later, or do without symmetric memory (SGLang: no --enable-symm-mem; "
        "TensorRT-LLM: another allreduce_strategy), and compare with graphs off",
        "medium",
        "https://github.com/sgl-project/sglang/pull/37768",
    ),
    Symptom(
        "window-on-spark",
        (
            When(
                (
                    r"GB10\b|DGX Spark|sm_121\b",
                    r"NCCL_SYMMETRIC\b|ncclCommWindowRegister|ncclCommGroupRegisterSymmetric"
                    r"|createNCCLWindowTensor",
                ),
                (r"NCCL version 2\.(?:30\.[4-9]|3[1-9])",),
            ),
        ),
        "on GB10 NCCL before 2.30.4 does not support windows of symmetric memory, which "
        "TensorRT-LLM takes for its allreduce",
        "use NCCL 2.30.4 or later, a TensorRT-LLM of July 2026 or later, or another "
        "allreduce_strategy (NCCL)",
        "medium",
        "https://github.com/NVIDIA/TensorRT-LLM/pull/15559",
    ),
    Symptom(
        "copy-engine-pair",
        (
            When(
                (
                    r"ncclCommWindowRegister|NCCL_WIN_COLL_SYMMETRIC|CE collective",
                    r"(?i)\b(?:hangs?|hanging|hung|stuck|deadlock\w*)\b",
                    r"(?i)\b(?:2|two)[- ](?:ranks?|GPUs?)\b|nranks 2\b",
                ),
                (r"\b2\.3[1-9]\.\d", r"GIN|gdaki", r"NCCL WARN", r"GB10\b"),
            ),
        ),
        "the first collective by copy engines on registered windows hangs with two ranks in NCCL "
        "before 2.31.2",
        "use NCCL 2.31.2 or later; until then NCCL_NVLS_ENABLE=0, or no windows with two ranks",
        "medium",
        f"{NCCL}2241",
    ),
    Symptom(
        "window-hangs",
        (
            When(
                (
                    r"ncclCommWindowRegister|enable-symm-mem",
                    r"(?i)\b(?:hangs?|hanging|hung|stuck|deadlock\w*)\b",
                ),
                (r"NCCL WARN", r"illegal memory access|out of memory"),
            ),
        ),
        "registering NCCL's symmetric memory takes all ranks, with the same size and order, and "
        "they come to it in different ways (autotuning, a pool that grows), or NCCL 2.29 loses a "
        "message there",
        "do without it (SGLang: no --enable-symm-mem) to see whether it is that; py-spy dump shows "
        "the call; use a later NCCL and server",
        "low",
        "https://github.com/sgl-project/sglang/issues/36943",
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
        "cpu-tensor",
        (
            When(
                (
                    r"Tensors must be CUDA and dense"
                    r"|No backend type associated with device type cpu",
                )
            ),
        ),
        "a collective is called with a tensor in the host's memory, and the process group has NCCL "
        "alone, which needs tensors on GPUs",
        "move the tensor to the GPU of the rank, or make the group for both kinds: "
        'init_process_group("cpu:gloo,cuda:nccl")',
        "high",
        "https://github.com/rwth-i6/returnn/pull/1740",
    ),
    Symptom(
        "unused-parameters",
        (When((r"Expected to have finished reduction in the prior iteration",)),),
        "parameters got no gradient in a step, so DistributedDataParallel waits for them: a part "
        "of the model was not used, or an output does not enter the loss",
        "let all outputs enter the loss, or pass find_unused_parameters=True; "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters",
        "high",
        f"{TORCH}43259",
    ),
    Symptom(
        "ready-twice",
        (When((r"Expected to mark a variable ready only once",)),),
        "a parameter is used more than once in a step, which DistributedDataParallel does not "
        "allow: most often gradient checkpointing with reentrant backward passes",
        "call checkpoint with use_reentrant=False (gradient_checkpointing_kwargs), or "
        "DistributedDataParallel with static_graph=True",
        "high",
        "https://github.com/modelscope/ms-swift/issues/3171",
    ),
    Symptom(
        "no-group",
        (When((r"Default process group (?:has not been|is not) initialized",)),),
        "something calls a collective in a process that has joined no group: often a layer for "
        "several GPUs (SyncBatchNorm) in a run with one",
        "start by the launcher and call init_process_group first, or replace such layers where one "
        "GPU is used (SyncBN by BN)",
        "high",
        "https://github.com/open-mmlab/mmsegmentation/issues/809",
    ),
    Symptom(
        "extension-lock",
        (
            When((r"torch/utils/file_baton\.py",)),
            When(
                (r"as PyTorch extensions root\.\.\.",),
                (
                    r"Loading extension module|Time to load|Building extension module"
                    r"|No modifications detected|Emitting ninja|Detected CUDA files",
                    r"[A-Z]\w+Error\b|NCCL WARN|terminate called",
                ),
            ),
        ),
        "DeepSpeed waits for the lock of an extension that another process is to build; a run that "
        "was ended leaves it",
        "end all processes of the job, delete the directory torch_extensions (~/.cache, or "
        "TORCH_EXTENSIONS_DIR), and start again; on several hosts keep it off shared storage",
        "medium",
        "https://github.com/huggingface/transformers/issues/26015",
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
        "hangup",
        (
            When(
                (
                    r"SignalException: Process \d+ got signal: 1\b|closing signal SIGHUP"
                    r"|Received (?:1|Signals\.SIGHUP) death signal",
                )
            ),
        ),
        "the terminal or ssh session of the launcher was closed, and torchrun ends its workers at "
        "that signal (SIGHUP), also under nohup",
        "run it in tmux or screen, by setsid, or as a job of the job manager",
        "high",
        f"{TORCH}76894",
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
