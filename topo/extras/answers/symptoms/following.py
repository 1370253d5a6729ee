"""Symptoms of what follows from causes elsewhere: they name none themselves."""

from __future__ import annotations

from ..symptom import Symptom, When
from .common import HANGS, NCCL, TORCH, VLLM

# Words that P2P was off and that it did not help.
_STILL = (
    r"(?i)(?:still|also|even) [^\n]{0,60}NCCL_P2P_DISABLE ?= ?1"
    r"|NCCL_P2P_DISABLE ?= ?1[^\n]{0,40}(?:still|does not|doesn't|did not|didn't)"
)
# Details without which NCCL's error says only what kind of call failed.
_DETAILS = (r"NCCL WARN", r"Last error:\s*\n?\s*\S")

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "peer-ended",
        (
            When(
                (
                    r"[Cc]onnection closed by (?:remote )?peer|Connection reset by peer"
                    r"|Socket recv failed while polling|ncclRemoteError"
                    r"|remote process exited or there was a network error"
                    r"|NCCL communicator was aborted"
                    r"|Call to recv from \S+ failed|[Bb]roken pipe"
                    r"|TCPStore server has shut down too early|Connection was likely closed",
                )
            ),
        ),
        "another rank has ended or left the communicator; the cause is in its log, not here",
        "find the rank that failed first, by time: its log or traceback names the cause (memory, "
        "an exception, a kill); if none has an error, look at ports and dmesg of the host named",
        "low",
        f"{NCCL}795",
    ),
    Symptom(
        "nixl-disconnected",
        (When((r"NIXL_ERR_REMOTE_DISCONNECT",)),),
        "the connection by which prefill and decode hand on their caches (NIXL, UCX) has broken: "
        "the peer ended or was not ready, or its link failed; it is not set up anew by itself",
        "look into the peer's log and its NIC first; then restart both sides, start decode after "
        "prefill is ready, and update NIXL",
        "low",
        "https://github.com/ai-dynamo/nixl/issues/1983",
    ),
    Symptom(
        "ray-worker-died",
        (
            When(
                (
                    r"Worker exit type: SYSTEM_ERROR"
                    r"|died or was killed while executing a task by an unexpected system error",
                ),
                (
                    r"[1-9]\d* Workers \(tasks / actors\) killed due to memory"
                    r"|memory usage threshold",
                ),
            ),
        ),
        "the process of a Ray worker ended without an exception of Python: it was killed, most "
        "often since the host's memory was full, or a library crashed",
        "look into that worker's own log (ray logs worker-ID*, /tmp/ray/session_latest/logs) and "
        "dmesg of its host; give the host or the container more memory",
        "low",
        "https://github.com/verl-project/verl/issues/472",
    ),
    Symptom(
        "timeout-in-saving",
        (
            When(
                (
                    HANGS,
                    r"(?i)\bin _?save_\w+|NCCL[^\n]{0,20} sav(?:e|ing)"
                    r"|\b(?:when|while|during|at|before|after) [^\n]{0,12}sav(?:e|ing)\b",
                )
            ),
        ),
        "a collective did not end while a checkpoint was saved: only some ranks call what gathers "
        "it (below if rank == 0), or one rank writes for longer than the time limit",
        "call the saving on all ranks (save_checkpoint, state_dict are collectives with ZeRO, FSDP "
        "and Lightning), raise the time limit, and save sharded or to faster storage",
        "low",
        f"{TORCH}143536",
    ),
    Symptom(
        "first-call-hangs",
        (When((rf"(?:{HANGS})[^\n]{{0,60}}\bSeqNum=1,",), (r"(?i)tokeniz|download",)),),
        "the very first collective did not end: the ranks do not reach each other as NCCL believes "
        "(P2P through ACS or the IOMMU, a wrong interface between hosts), or one of them is late: "
        "it reads or prepares data, or does not come there",
        "run with NCCL_DEBUG=INFO; try NCCL_P2P_DISABLE=1 on one host, NCCL_SOCKET_IFNAME between "
        "hosts; see that no rank still loads or prepares data",
        "low",
        "https://github.com/huggingface/accelerate/issues/2062",
    ),
    Symptom(
        "watchdog",
        (
            When((HANGS,)),
            When(
                (
                    r"failed to pass monitoredBarrier|due to a collective timeout from"
                    r"|detected a collective timeout",
                )
            ),
        ),
        "a collective did not end in time; that is rarely the network: most often a rank did not "
        "call it, since it failed, waits elsewhere, or takes another branch",
        "find the rank that does not name this call (TORCH_NCCL_TRACE_BUFFER_SIZE=2000 writes what "
        "each waits for, py-spy dump shows where it is); a longer timeout for slow data or saving",
        "low",
        f"{TORCH}118369",
    ),
    Symptom(
        "workers-wait",
        (When((r"No available shared memory broadcast block found in \d+ second",)),),
        "vLLM's scheduler waits for its workers, of which one is stuck or busy; the cause is there",
        "see what the workers print before it, with NCCL_DEBUG=INFO; if they hang in NCCL's start, "
        "try NCCL_P2P_DISABLE=1",
        "low",
        "https://github.com/QwenLM/Qwen3-VL/issues/1793",
    ),
    Symptom(
        "rendezvous-closed",
        (When((r"RendezvousClosedError",)),),
        "this host wants to join again a rendezvous that has ended, as another host's launcher "
        "has failed, was ended or is done",
        "look into the logs of the other hosts for what ended first; give a new start a new "
        "--rdzv-id",
        "low",
        f"{TORCH}147064",
    ),
    Symptom(
        "store-wait",
        (When((r"wait timeout after \d+ ?ms",)),),
        "a rank waited in the store for what another one was to write: that one has failed, is "
        "late, or was not started",
        "look into the logs of the other ranks, rank 0 first, for who failed or hangs; see that "
        "all hosts started, and raise the timeout where loading or saving takes longer",
        "low",
        f"{VLLM}12526",
    ),
    Symptom(
        "system-error",
        (When((r"unhandled system error|ncclSystemError",), _DETAILS),),
        "a system call failed in NCCL, and the text does not say which: between hosts it is mostly "
        "a connection (firewall, wrong interface), inside a host shared memory (/dev/shm), or a "
        "file that the image gives NCCL (NCCL_GRAPH_FILE, NCCL_TOPO_FILE in nccl.conf)",
        "run with NCCL_DEBUG=WARN and give the line of NCCL WARN; between hosts set "
        "NCCL_SOCKET_IFNAME to the interface there and open all ports (ping proves nothing); in "
        "one host try --ipc=host, and without what /etc/nccl.conf sets",
        "low",
        f"{NCCL}1059",
    ),
    Symptom(
        "cuda-error",
        (When((r"unhandled cuda error|ncclUnhandledCudaError",), _DETAILS),),
        "a call of CUDA failed in NCCL, and the text does not say which: memory of the GPU that is "
        "full, a GPU that the process does not see, or a build that does not fit GPU or driver",
        "run with NCCL_DEBUG=WARN and give the line of NCCL WARN; look at nvidia-smi for memory "
        "and other processes, and at CUDA_VISIBLE_DEVICES",
        "low",
        f"{TORCH}130113",
    ),
    Symptom(
        "internal-error",
        (When((r"NCCL[^\n]{0,40}internal error|ncclInternalError",), _DETAILS),),
        "NCCL's start failed in itself, and the text does not say where: mostly what it found of "
        "the machine contradicts itself (a topology file by a plugin or NCCL_TOPO_FILE, a virtual "
        "machine, ranks that see different devices)",
        "run with NCCL_DEBUG=WARN and give the line of NCCL WARN; try without NCCL_TOPO_FILE and "
        "network plugins",
        "low",
        f"{NCCL}1726",
    ),
    Symptom(
        "stuck-in-host",
        (
            When(
                (
                    r"(?i)\b(?:hangs?|hanging|hung|stuck|freez\w+|deadlock\w*)\b",
                    r"nGpus [2-9]|_perf [^\n]{0,80}-g ?[2-9]",
                ),
                (r"NCCL WARN|nNodes [2-9]|via NET/|mpirun|(?i:error)|\d FAILED", _STILL),
            ),
            When(
                (
                    r"(?i)\b(?:hangs?|hanging|hung|stuck|freez\w+|deadlock\w*)\b",
                    r"(?i)tensor[-_ ]parallel(?:[-_ ]size)?[ =]*[2-9]\b|\bTP ?= ?[2-9]\b",
                ),
                (
                    r"NCCL WARN|nNodes [2-9]|via NET/|(?i:nodes|nnodes|multi-?node|Traceback)",
                    r"(?i)out of memory|[A-Z]\w+Error\b|NCCL_CUMEM|NCCL_SHM",
                    _STILL,
                ),
            ),
        ),
        "GPUs of one host wait for each other's data, by the words alone: most often direct "
        "transfers between them (P2P) do not arrive, through the IOMMU or ACS or by a fault of the "
        "driver; else NVLS, a kernel for allreduce, or a rank that does something else",
        "try NCCL_P2P_DISABLE=1, with NVSwitches NCCL_NVLS_ENABLE=0, in vLLM and SGLang --disable-"
        "custom-all-reduce: what makes it run names the part; then IOMMU off or iommu=pt, ACS off, "
        "another driver; NCCL_DEBUG=INFO shows where it ends",
        "low",
        "https://github.com/ROCm/rccl/issues/1129",
    ),
)
