"""Symptoms of memory that is full, or that ranks cannot share."""

from __future__ import annotations

from ..symptom import Symptom, When
from .common import NCCL, TESTS, TORCH, VLLM

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "gpu-memory-full",
        (
            When(
                (
                    r"(?:torch\.(?:cuda\.)?OutOfMemoryError|(?:CUDA|HIP) out of memory\."
                    r"|hipErrorOutOfMemory"
                    r"|NCCL WARN (?:Cuda|CUDA|HIP) failure (?:\d+ )?'out of memory'"
                    r"|Failed to (?:CUDA|HIP) (?:calloc|malloc)|Cuda failure (?:2 )?'out of mem)",
                ),
                (r"Tried to allocate more than 1EB",),
            ),
        ),
        "the memory of a rank's GPU is full; the other ranks then wait for it, time out or lose "
        "their connection",
        "leave the library some memory (smaller batch, vLLM's --gpu-memory-utilization, SGLang's "
        "--mem-fraction-static), and look for other processes on the GPU; a communicator takes up "
        "to a few GB",
        "high",
        f"{NCCL}1235",
    ),
    Symptom(
        "memory-unbalanced",
        (When((r"memory capacity is unbalanced",)),),
        "the GPUs of a tensor-parallel group have different amounts of free memory: one is used by "
        "another process, or they are of different sizes",
        "end what else runs on them (nvidia-smi), or take GPUs of one size",
        "medium",
        "https://github.com/sgl-project/sglang/issues/1533",
    ),
    Symptom(
        "host-memory-full",
        (
            When(
                (
                    r"oom-kill|[Oo]ut of memory: Killed process|OOMKilled|oom_kill event"
                    r"|Out Of Memory\.|OOM Killed"
                    r"|[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure"
                    r"|exceeds the memory usage threshold of",
                )
            ),
        ),
        "the system ended a process since the memory of the host, or of its container, was full; "
        "other ranks then wait for it",
        "give the job more memory, or use less of it: fewer workers of the data loader, no copy of "
        "the model per rank; dmesg names the process",
        "high",
        f"{TORCH}54823",
    ),
    Symptom(
        "rank-killed",
        (
            When(
                (
                    r"exitcode\s*: -9\b|Signal 9 \(SIGKILL\)|exits with return code = -9"
                    r"|terminated with signal SIGKILL|Signals\.SIGKILL: 9|oom-kill:"
                    r"|exited on signal 9|exit code:? 137\b",
                )
            ),
        ),
        "a process was killed from outside, most often by the system since the memory of the host "
        "was full; other ranks then wait for it",
        "look into dmesg and the job manager's log for who killed it; then give the job more "
        "memory, or use less of it",
        "medium",
        "https://github.com/deepspeedai/DeepSpeed/issues/4890",
    ),
    Symptom(
        "shm-full",
        (
            When(
                (
                    r"posix_fallocate failed ?: No space left|failed to extend /dev/shm/\S+ to \d+"
                    r"|creating shared memory segment \S+ [^\n]{0,60}No space left on device",
                )
            ),
            When(
                (r"creating shared memory segment \S+ \(size \d+\)\s*$",),
                (r"failure (?:1 )?'invalid argument'",),
            ),
            When((r"Bus error[^\n]{0,80}(?:shared memory|\bshm\b)",)),
        ),
        "/dev/shm is too small for the buffers through which ranks of a host send: containers get "
        "64 MiB unless they ask for more, and runs that crashed leave files there",
        "start the container with --shm-size=1g or more, or --ipc=host (in Kubernetes an emptyDir "
        "with medium: Memory at /dev/shm), and remove stale /dev/shm/nccl-* files",
        "high",
        f"{NCCL}342",
    ),
    Symptom(
        "shm-permission",
        (
            When(
                (
                    r"shm_open failed ?: Permission denied"
                    r"|shared memory [^\n]{0,80}Permission denied",
                )
            ),
        ),
        "the user may not write to /dev/shm, or files there are another user's",
        "see ls -ld /dev/shm (drwxrwxrwt is right: chmod 1777 /dev/shm), and delete what is left "
        "of ended jobs",
        "high",
        f"{NCCL}328",
    ),
    Symptom(
        "shm-without-numa-memory",
        (
            When(
                (
                    r"attaching to shared memory segment /dev/shm/nccl-[^\n]{0,40}"
                    r"\(size (?:0|\d{12,})\)",
                )
            ),
        ),
        "NCCL takes memory of the host from the NUMA node of a GPU, and that node has no memory "
        "(empty channels of memory, or several nodes per socket), so ranks do not agree on a "
        "buffer",
        "set NCCL_CUMEM_HOST_ENABLE=0, or have one NUMA node per socket (BIOS: NPS1), or populate "
        "the memory channels",
        "high",
        f"{TORCH}152302",
    ),
    Symptom(
        "shm-not-shared",
        (
            When(
                (
                    r"attaching to shared memory segment /dev/shm/nccl-\S{6,} \(size [1-9]\d{0,10}"
                    r"\), error: No such file",
                )
            ),
        ),
        "a rank does not see the file in /dev/shm that another rank of the host made: they are in "
        "containers with a /dev/shm of their own, or something removes the files",
        "run the ranks of a host in one container or with --ipc=host; RemoveIPC=no in logind.conf; "
        "NCCL_SHM_DISABLE=1 tells whether it is that",
        "medium",
        f"{NCCL}1589",
    ),
    Symptom(
        "bus-error",
        (
            When(
                (
                    r"exits with return code = -7\b|exitcode ?[:=] ?-7\b|Signal 7 \(SIGBUS\)"
                    r"|Caught signal 7 \(Bus error|[Uu]nexpected bus error encountered in worker"
                    r"|killed by signal: Bus error",
                )
            ),
        ),
        "a process used memory behind which there is none: mostly /dev/shm is full, which in a "
        "container has 64 MiB unless it asks for more; seldom a file that was cut, or a file "
        "system over the network",
        "start the container with --shm-size=8g or --ipc=host (in Kubernetes an emptyDir with "
        "medium: Memory at /dev/shm), and watch df -h /dev/shm while it runs",
        "medium",
        "https://github.com/deepspeedai/DeepSpeed/issues/4002",
    ),
    Symptom(
        "ptrace-forbidden",
        (
            When(
                (
                    r"pidfd_getfd(?:\([^)\n]*\))?[^\n]{0,40}"
                    r"(?:Operation not permitted|Permission denied)",
                )
            ),
        ),
        "a rank may not take over another one's handle of GPU memory (expandable segments, "
        "symmetric memory): the container, or the kernel's ptrace_scope, forbids it",
        "start the container with --cap-add=SYS_PTRACE, or set sysctl kernel.yama.ptrace_scope=0; "
        "else leave PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True out",
        "high",
        "https://github.com/flashinfer-ai/flashinfer/issues/2394",
    ),
    Symptom(
        "rccl-ipc",
        (
            When(
                (
                    r"hipIpcGetMemHandle[^\n]{0,60}invalid argument"
                    r"|IPC memory creation failed for memory",
                )
            ),
        ),
        "ROCm cannot share a GPU's memory between processes; found with "
        "HSA_ENABLE_IPC_MODE_LEGACY=1, which images of vLLM for ROCm set",
        "unset HSA_ENABLE_IPC_MODE_LEGACY (or set it to 0); NCCL_P2P_DISABLE=1 does without",
        "medium",
        "https://github.com/ROCm/rocm-systems/issues/2209",
    ),
    Symptom(
        "memlock",
        (
            When(
                (
                    r"ibv_(?:exp_)?(?:reg_(?:dmabuf_)?mr(?:_iova2?)?|create_(?:cq|qp))\S* failed"
                    r"[^\n]{0,40}Cannot allocate memory"
                    r"|RLIMIT_MEMLOCK is \d+ bytes"
                    r"|ibv_reg_mr\S*\([^\n]{0,200}failed: Cannot allocate memory",
                )
            ),
        ),
        "the limit of locked memory is too low for the NIC's buffers",
        "raise it to unlimited where the ranks run: ulimit -l (limits.conf and a new login), "
        "--ulimit memlock=-1 for containers, LimitMEMLOCK=infinity for slurmd and sshd",
        "high",
        f"{TESTS}206",
    ),
    Symptom(
        "window-space",
        (When((r"No suitable space found to accommodate size=",)),),
        "the range of addresses that NCCL keeps for symmetric memory is full: buffers are "
        "registered again and again (ncclCommWindowRegister), each time as new ones, up to NCCL "
        "2.30.7",
        "register each buffer once and keep its window, deregister those that are done with, or do "
        "without (SGLang: leave --enable-symm-mem out; vLLM: VLLM_USE_NCCL_SYMM_MEM=0)",
        "high",
        f"{NCCL}2331",
    ),
    Symptom(
        "open-files",
        (
            When(
                (
                    r"(?:NCCL|CCOM|RCCL|[Ss]ocket|[Aa]ccept|c10d|gloo|ncclOs)[^\n]{0,120}"
                    r"[Tt]oo many open files",
                )
            ),
        ),
        "a process has more sockets and files open than the system allows",
        "raise the limit where the ranks run: ulimit -n 65536 (srun hands on that of the shell), "
        "--ulimit nofile=65536 for containers; lower NCCL_NSOCKS_PERTHREAD if it was raised",
        "high",
        f"{NCCL}550",
    ),
    Symptom(
        "process-limit",
        (
            When(
                (
                    r"pthread_create(?:\(\))? failed[^\n]{0,80}Resource temporarily unavailable"
                    r"|fork: (?:retry: )?Resource temporarily unavailable"
                    r"|RuntimeError: can't start new thread",
                )
            ),
        ),
        "the limit of processes and threads is reached: the user's (ulimit -u), or the container's "
        "(pids)",
        "raise it: ulimit -u (limits.conf), --pids-limit=-1 for Docker and Podman; or start fewer "
        "threads (OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, workers of the data loader)",
        "high",
        f"{VLLM}13354",
    ),
)
