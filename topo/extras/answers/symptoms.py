"""The table of symptoms, for people to add to (README.md says how).

Of symptoms that are equally sure, the first one here is the first answer: causes come above what
follows from them. Patterns are for the lines of all versions: NCCL has renamed functions and files,
and since 2.2x adds the number of an error to its text.
"""

from __future__ import annotations

from .symptom import Symptom, When

_NCCL = "https://github.com/NVIDIA/nccl/issues/"
_TESTS = "https://github.com/NVIDIA/nccl-tests/issues/"
_TORCH = "https://github.com/pytorch/pytorch/issues/"
_VLLM = "https://github.com/vllm-project/vllm/issues/"
# The message of an InfiniBand completion: "with error 12", "status=12", "status=NAME(12)".
_COMPLETION = r"Got completion [^\n]{{0,120}}with (?:error |status=)(?:\w+\()?{}\b"
# What NCCL and torch say of a peer that cannot be reached.
_UNREACHED = (
    r"(?:[Cc]onnect(?:ed|ion)? to \S+ (?:failed|returned)|Call to connect failed"
    r"|SocketPollConnect to \S+ failed|Gloo connectFullMesh failed)[^\n]{0,160}"
    r"(?:[Nn]o route to host|[Cc]onnection refused|timed out|unreachable|connection abort)"
)
_HANGS = (
    r"Watchdog caught collective operation timeout|Timeout at NCCL work"
    r"|watchdog got stuck for \d+ seconds|Heartbeat monitor timed out"
    r"|Timed out waiting \d+ ?ms for (?:send|recv) operation"
)
# Addresses and interfaces that exist on one host alone.
_OWN_ADDRESS = r"(?:127\.\d{1,3}\.\d{1,3}\.\d{1,3}|172\.1[78]\.\d{1,3}\.\d{1,3}|\[?::1\]?)\b"
_OWN_INTERFACE = r"(?:docker|br-|veth|virbr|lxcbr|lxdbr|cni|flannel|cali|podman|tailscale|lo:)"

SYMPTOMS: tuple[Symptom, ...] = (
    # -- the machine: drivers, fabric, faults
    Symptom(
        "fabric-manager",
        (
            When(
                (
                    r"[Ss]ystem not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|"
                    r"CUDA (?:[Ee]rror|failure):? 802\b",
                )
            ),
        ),
        "GPUs behind NVSwitches cannot be used before the fabric manager has set the switches up: "
        "it does not run, or its version is not the driver's",
        "install nvidia-fabricmanager in the driver's version and start it (systemctl enable --now "
        "nvidia-fabricmanager); nvidia-smi -q then has State: Completed under Fabric",
        "high",
        f"{_TESTS}264",
    ),
    Symptom(
        "gpu-fault",
        (
            When(
                (
                    r"[Uu]ncorrectable (?:NVLink|ECC) error|fallen off the bus"
                    r"|NVRM: Xid \([^)\n]*\): (?:48|63|64|74|79|94|95|119|120|140|145|149)\b"
                    r"|Unable to determine the device handle for GPU",
                )
            ),
        ),
        "a GPU or an NVLink has failed; what other ranks say follows from it",
        "look for Xid and SXid errors (dmesg), take the host out, reset its GPUs or power it off "
        "and on, and run dcgmi diag -r 3 before it is used again",
        "high",
        f"{_TORCH}58155",
    ),
    Symptom(
        "driver-too-old",
        (
            When(
                (
                    r"driver version is insufficient for CUDA runtime version"
                    r"|API call is not supported in the installed CUDA driver"
                    r"|PTX was compiled with an unsupported toolchain|UnsupportedPtxVersion"
                    r"|forward compatibility was attempted on non supported HW"
                    r"|(?:Driver/library|driver and library) version mismatch",
                )
            ),
        ),
        "the driver does not fit the CUDA that the program was built with, or was replaced while "
        "it was loaded",
        "update the driver and reboot, or use a build for an older CUDA",
        "high",
        f"{_NCCL}1005",
    ),
    Symptom(
        "kernel-not-built",
        (
            When(
                (
                    r"'?named symbol not found|no kernel image is available for execution"
                    r"|cudaErrorNoKernelImageForDevice|hipErrorNoBinaryForGpu",
                )
            ),
        ),
        "NCCL, the test or the program was built without code for this GPU's architecture",
        "use a build that has it (NVCC_GENCODE for NCCL and nccl-tests, a newer wheel of torch and "
        "nvidia-nccl), and see which libnccl.so is loaded",
        "high",
        f"{_NCCL}1372",
    ),
    Symptom(
        "vgpu-memory",
        (When((r"init\.cc:\d+ [^\n]{0,20}NCCL WARN Cuda failure (?:801 )?'operation not supp",)),),
        "the driver refuses the pool of memory that NCCL makes at its start, as a virtual GPU does "
        "whose unified memory is off",
        "turn on unified memory for the virtual GPU (enable_uvm in the hypervisor), or pass the "
        "whole GPU through; without virtual GPUs update the driver",
        "medium",
        f"{_NCCL}2101",
    ),
    Symptom(
        "cumem-host",
        (When((r"transport/shm\.cc:\d+ [^\n]{0,60}peer access is not supported between",)),),
        "NCCL shares the host's memory by a call of CUDA that asks for P2P, which these GPUs do "
        "not have",
        "set NCCL_CUMEM_HOST_ENABLE=0",
        "high",
        f"{_NCCL}1838",
    ),
    Symptom(
        "no-gpus",
        (
            When(
                (
                    r"no CUDA-capable device is detected|No (?:CUDA|HIP) GPUs are available"
                    r"|hipErrorInvalidDevice\b|hipErrorNoDevice|no ROCm-capable device is detected",
                )
            ),
        ),
        "the process sees no GPU: CUDA_VISIBLE_DEVICES is empty or names others, the container "
        "was given none, or the driver is not loaded",
        "run nvidia-smi in the same place, and print CUDA_VISIBLE_DEVICES in the process that "
        "fails; containers need --gpus all, with ROCm --device=/dev/kfd --device=/dev/dri and the "
        "group of /dev/dri/render*",
        "medium",
        f"{_TESTS}30",
    ),
    Symptom(
        "gpu-exclusive",
        (When((r"CUDA-capable device(?:s|\(s\)) (?:are|is/are) busy or unavailable",)),),
        "a GPU in the mode for one process (E. Process in nvidia-smi) is opened by a second one: "
        "another job, or a rank that has not set its own device before the first call",
        "set the device of each rank first (torch.cuda.set_device), end what is left of earlier "
        "jobs, or nvidia-smi -c DEFAULT",
        "medium",
        f"{_TESTS}369",
    ),
    Symptom(
        "device-not-set",
        (When((r"(?:Cuda|CUDA) (?:failure|Runtime|error)[^\n]{0,20}invalid resource handle",)),),
        "a stream or an event of one GPU is used while another one is the current device: the "
        "process has not set its device, or threads share it",
        "call torch.cuda.set_device(LOCAL_RANK), or cudaSetDevice in each thread, before the first "
        "collective; NCCL 2.12 and older need it with torch 2.3 and later",
        "medium",
        f"{_TORCH}130414",
    ),
    Symptom(
        "illegal-access",
        (When((r"an illegal memory access was encountered",)),),
        "a kernel read or wrote outside its memory; NCCL's watchdog is often the first to notice, "
        "and neither it nor the network is the cause",
        "run with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer to see which kernel it is, and try "
        "the program without its own kernels (attention, quantization, graphs)",
        "medium",
        f"{_VLLM}4108",
    ),
    Symptom(
        "nvls-bind",
        (
            When((r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory",)),
            When((r"transport/nvls\.cc:\d+ [^\n]{0,40}NCCL WARN (?:Cuda|CUDA) failure",)),
        ),
        "NVSwitches refuse to add (NVLS): most often the fabric manager was restarted after the "
        "GPUs were set up",
        "reset all GPUs of the host or reboot it, with the fabric manager started in its order; "
        "NCCL_NVLS_ENABLE=0 does without, more slowly",
        "high",
        f"{_NCCL}1488",
    ),
    Symptom(
        "imex",
        (
            When((r"MNNVL \(cliqueSize \d+\) is available but not working|Check the IMEX",)),
            When(
                (
                    r"MNNVL[^\n]{0,200}cliqueSize (?:[2-9]|\d\d)",
                    r"(?:cuMem(?:Import|Export)\w*ShareableHandle|NCCL WARN Cuda failure (?:1|101|"
                    r"800|999)\b)[^\n]{0,120}",
                )
            ),
        ),
        "the NVLink fabric spans hosts, and they cannot exchange memory over it: the IMEX service "
        "or its channels are missing on a host or in a container",
        "start nvidia-imex on all hosts of the domain (nvidia-imex-ctl -N), give containers "
        "/dev/nvidia-caps-imex-channels/channel0; NCCL_MNNVL_ENABLE=0 does without that fabric",
        "high",
        f"{_NCCL}1647",
    ),
    Symptom(
        "fabric-not-ready",
        (When(findings=("fabric-not-completed",)), When(findings=("fabric-unhealthy",))),
        "the NVLink fabric of a GPU is not registered, or not well, so NVLink through the switches "
        "does not work",
        "see what nvidia-smi -q says under Fabric, restart nvidia-fabricmanager (on NVL72 nvidia-"
        "imex), then reset the GPUs",
        "high",
        f"{_NCCL}1672",
    ),
    # -- memory
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
        f"{_NCCL}1235",
    ),
    Symptom(
        "host-memory-full",
        (
            When(
                (
                    r"oom-kill|[Oo]ut of memory: Killed process|OOMKilled|oom_kill event"
                    r"|Out Of Memory\.|OOM Killed",
                )
            ),
        ),
        "the system ended a process since the memory of the host, or of its container, was full; "
        "other ranks then wait for it",
        "give the job more memory, or use less of it: fewer workers of the data loader, no copy of "
        "the model per rank; dmesg names the process",
        "high",
        f"{_TORCH}54823",
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
        f"{_NCCL}342",
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
        f"{_NCCL}328",
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
        f"{_TORCH}152302",
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
        f"{_NCCL}1589",
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
        f"{_TESTS}206",
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
        f"{_NCCL}550",
    ),
    # -- the start: what NCCL finds, and what does not fit
    Symptom(
        "xml-nodes",
        (
            When(
                (
                    r"too many XML (?:sub)?nodes \(max \d+\)"
                    r"|XML parser is limited to \d+ (?:sub)?nodes",
                )
            ),
        ),
        "NCCL joins what its ranks find of a host into one XML, and with many NICs and switches "
        "that exceeds the limit of elements; the NICs that are offered do not matter, as it reads "
        "all of PCI",
        "use an NCCL that sizes it for all ranks of the host (after 2.30.4), or an older one; "
        "leave NCCL_TOPO_FILE and NCCL_IB_HCA alone, which do not help",
        "high",
        f"{_NCCL}2160",
    ),
    Symptom(
        "xml-attribute",
        (
            When(
                (
                    r"Attribute \w+ of node \w+ not found|XML (?:Parse|Mismatch)\b[^\n]{0,20}:"
                    r"|XML Topology has wrong version",
                )
            ),
        ),
        "the topology file that NCCL was given (NCCL_TOPO_FILE, or by a plugin) does not fit this "
        "machine or this NCCL",
        "leave NCCL_TOPO_FILE out, or write one on this machine (topo-probe --format nccl-xml); "
        "update the plugin that sets it",
        "medium",
        "https://github.com/aws/aws-ofi-nccl/issues/785",
    ),
    Symptom(
        "graph-file-set",
        (
            When((r"XML Import Channel ?: dev \d+ not found",)),
            When(
                (
                    r"NCCL_GRAPH_FILE set by environment",
                    r"ncclSystemError|ncclInternalError|unhandled system error",
                ),
                (r"NCCL WARN (?!XML Import)",),
            ),
        ),
        "NCCL is given a file of rings (NCCL_GRAPH_FILE) that is for other GPUs, or for more of "
        "them than the run uses",
        "unset NCCL_GRAPH_FILE, in the environment and in /etc/nccl.conf and ~/.nccl.conf, where "
        "images of Azure set it",
        "high",
        f"{_NCCL}1240",
    ),
    Symptom(
        "duplicate-gpu",
        (When((r"Duplicate GPU detected|Multiple [Rr]anks are using the same GPU",)),),
        "two ranks use the same GPU",
        "give each rank its own: torch.cuda.set_device(LOCAL_RANK) before the first collective, as "
        "many ranks per host as CUDA_VISIBLE_DEVICES shows GPUs, and one launcher alone",
        "high",
        "https://github.com/horovod/horovod/issues/3929",
    ),
    Symptom(
        "device-ordinal",
        (
            When(
                (
                    r"Test (?:CUDA|HIP) failure [^\n]{0,60}'invalid device ordinal'"
                    r"|(?:CUDA|HIP) error: invalid device ordinal",
                )
            ),
        ),
        "a process asks for a GPU by a number that it does not see: more ranks per host than GPUs, "
        "or each of them takes several (-g), or others are hidden (CUDA_VISIBLE_DEVICES)",
        "start as many processes per host as nvidia-smi -L shows there in the same launch, with -g "
        "1; or one process with -g N",
        "high",
        f"{_TESTS}263",
    ),
    Symptom(
        "gpus-hidden",
        (
            When(
                (r"transport/p2p\.cc:\d+ [^\n]{0,60}(?:Cuda|CUDA) failure (?:101 )?'invalid dev",),
                (r"cliqueSize (?:[2-9]|\d\d)",),
            ),
        ),
        "a rank's process does not see the GPU of another rank of its host, whose memory it is to "
        "map: the job manager or the container gives each task its own GPU alone",
        "let all tasks of a host see all of its GPUs (srun --gpus-per-node with --gpu-bind=none in "
        "place of --gpus-per-task), and choose by LOCAL_RANK",
        "medium",
        f"{_NCCL}1948",
    ),
    Symptom(
        "tests-apart",
        (
            When(findings=("separate-jobs",)),
            When(findings=("single-rank",)),
            # Rank 0 twice in one list of devices.
            When(
                (
                    r"Rank +0 +(?:Group +0 +)?Pid +(\d+) [^\n]*(?:\n *#[^\n]*){0,64}?"
                    r"\n *# *Rank +0 +(?:Group +0 +)?Pid +(?!\1 )\d+ ",
                ),
            ),
        ),
        "the processes run alone, each a job of its own: nccl-tests was built without MPI, or with "
        "another MPI than that of mpirun",
        "build it anew: make clean; make MPI=1 MPI_HOME=...; then mpirun of that MPI joins them "
        "(NCCL_TESTS_SPLIT_MASK divides them on purpose)",
        "high",
        f"{_TESTS}182",
    ),
    Symptom(
        "version-mismatch",
        (
            When(
                (
                    r"Mismatched NCCL version detected|NCCL version mismatch with remote peer"
                    r"|NCCL library is (?:too old|not backwards compatible)"
                    r"|undefined symbol: \"?nccl[A-Z]\w+",
                )
            ),
        ),
        "ranks run different versions of NCCL, or another one than the program was built with",
        "use one image on all hosts, and see which libnccl.so is loaded (LD_LIBRARY_PATH, "
        "VLLM_NCCL_SO_PATH, nvidia-nccl-cu12 beside the system's)",
        "high",
        f"{_TORCH}122571",
    ),
    Symptom(
        "networks-differ",
        (
            When((r"socketFinalizeAccept: wrong type \d != \d",)),
            When((r"Detected mixed local (?:Net|CollNet) device counts across ranks",)),
            When(
                (r"Attempted to connect incompatible devices|device is incompatible with the loc",)
            ),
        ),
        "ranks do not use the same network: one host has other NICs that work, or none, so that "
        "their ends do not fit",
        "compare the lines NET/IB : Using of all hosts; make the same NICs work on each, or name "
        "those that all have in NCCL_IB_HCA",
        "high",
        f"{_NCCL}2428",
    ),
    Symptom(
        "no-transport",
        (When((r"No transport found for rank \d+\[",)),),
        "nothing is left by which two ranks of a host could send: P2P is refused or off, and SHM "
        "and the network are off too",
        "unset NCCL_SHM_DISABLE and NCCL_NET_DISABLE_INTRA, and NCCL_P2P_DISABLE unless P2P is "
        "broken here",
        "high",
        "https://github.com/NVIDIA/nccl/pull/602",
    ),
    Symptom(
        "peer-mappings",
        (When((r"peer mapping resources exhausted",)),),
        "one process uses more GPUs than may map each other's memory (eight others)",
        "start one process per GPU (mpirun -np 10 ... -g 1, torchrun) in place of one for all",
        "high",
        f"{_NCCL}241",
    ),
    # -- between hosts: the start
    Symptom(
        "no-interface",
        (
            When(
                (
                    r"Bootstrap ?: no socket interface found|NET/Socket ?: no interface found"
                    r"|No usable listening interface found|No interface found in the same subnet"
                    r"|No IP interface found|connecting to address\s+with family \d+ is neither"
                    r"|Socket creation failed ?: Address family not supported",
                )
            ),
        ),
        "no network interface has the name or the address that NCCL was told",
        "correct or unset NCCL_SOCKET_IFNAME (several names for hosts that differ: eno1,eth0; = "
        "and ^ before a name match exactly and exclude), NCCL_COMM_ID; in containers use the "
        "host's network",
        "high",
        f"{_NCCL}1837",
    ),
    Symptom(
        "gloo-interface",
        (When((r"Unable to find address for: \S+",)),),
        "GLOO_SOCKET_IFNAME names no interface of the host: it takes one name, and not NCCL's "
        "lists and exclusions (^lo)",
        "set it to the interface with the host's address (ip route get ADDRESS names it)",
        "high",
        "https://github.com/aws-samples/aws-do-eks/pull/51",
    ),
    Symptom(
        "gloo-loopback",
        (
            When((rf"[Gg]loo[^\n]{{0,300}}(?:remote|local)=\[?{_OWN_ADDRESS}",)),
            When((r"Unable to resolve hostname to a \(local\) address",)),
        ),
        "gloo takes the address to which the host's own name resolves, and that is one which other "
        "hosts do not reach (127.0.0.1, 127.0.1.1)",
        "set GLOO_SOCKET_IFNAME to the interface between the hosts, or correct /etc/hosts",
        "high",
        "https://github.com/aws-samples/aws-do-eks/pull/69",
    ),
    Symptom(
        "own-address",
        (
            When(
                (
                    rf"[Cc]onnect(?:ed|ion)? to \S{{0,40}}?{_OWN_ADDRESS}[^\n]{{0,12}} "
                    "(?:failed|returned)",
                )
            ),
            When(
                (
                    r"The client socket has (?:timed out|failed to connect)[^\n]{0,80}"
                    rf"[(\[](?:::ffff:)?{_OWN_ADDRESS}",
                ),
                (r"\(127\.0\.0\.1, ",),
            ),
        ),
        "a rank is to connect to an address that exists inside one host alone (Docker's bridge, "
        "loopback), as the peer offers it",
        "set NCCL_SOCKET_IFNAME (and VLLM_HOST_IP, MASTER_ADDR) to the interface between the "
        "hosts, and run containers with the host's network (--network host)",
        "high",
        f"{_NCCL}929",
    ),
    Symptom(
        "bridge-interface",
        (
            When(
                (rf"Bootstrap ?: Using (?:\[0\] ?)?{_OWN_INTERFACE}", r"[Cc]onnect|nNodes [2-9]"),
            ),
            # Beside the right one, and the start fails.
            When(
                (
                    rf"NET/Socket ?: Using \[0\][^\n]*\[\d+\]{_OWN_INTERFACE}",
                    r"ncclSystemError|unhandled system error|ncclRemoteError",
                ),
                (r"NCCL WARN (?!Failed to open libibverbs|NET/Socket|socket|[^\n]*[Cc]onnect)",),
            ),
        ),
        "NCCL starts over an interface that exists inside one host alone (a container's bridge or "
        "pair, a VPN), over which other hosts are not reached",
        "set NCCL_SOCKET_IFNAME to the interface between the hosts, such as eth0, or exclude: "
        "NCCL_SOCKET_IFNAME=^lo,docker,veth,br-",
        "medium",
        f"{_NCCL}913",
    ),
    Symptom(
        "unreached",
        (When((_UNREACHED,)),),
        "a rank cannot connect to another one's address: a firewall, an interface that does not "
        "lead there, or a process that has ended",
        "see whether it is the interface between the hosts (NCCL_SOCKET_IFNAME) and all ports are "
        "open between them; NCCL takes any port",
        "medium",
        f"{_NCCL}1105",
    ),
    Symptom(
        "store-unreached",
        (
            When(
                (
                    r"client socket has timed out after \d+ ?m?s while trying to connect"
                    r"|client socket has failed to connect to [^\n]{0,80}errno: 110"
                    r"|client socket has failed to connect to any network address"
                    r"|failed to connect/validate to host|RendezvousConnectionError",
                )
            ),
        ),
        "a rank does not reach the store where all ranks meet (MASTER_ADDR, --rdzv-endpoint): "
        "wrong address or port, a firewall, or the process that has the store did not start",
        "see that all ranks name the same address and a free port, that the name resolves to the "
        "same host everywhere (/etc/hosts), and that nc -z ADDRESS PORT succeeds from each host",
        "medium",
        f"{_TORCH}105782",
    ),
    Symptom(
        "rank-count",
        (
            When(
                (
                    r"mismatch in rank count from procs \d+ : \d+"
                    r"|rank \d+ of \d+ ranks has already checked in",
                )
            ),
        ),
        "processes with different numbers of ranks, or with the same rank, meet in one start: two "
        "jobs share an address, or world sizes differ",
        "end what is left of earlier jobs, give each job a port of its own, and see that all "
        "processes have the same WORLD_SIZE and each its own RANK",
        "high",
        f"{_TORCH}46248",
    ),
    Symptom(
        "name-unknown",
        (
            When(
                (
                    r"cannot be retrieved \(gai error|gaierror: \[Errno"
                    r"|Temporary failure in name resolution",
                )
            ),
        ),
        "the name of a host has no address where the rank runs",
        "give addresses in place of names (MASTER_ADDR, --rdzv-endpoint), or add the hosts' own "
        "names to /etc/hosts of all of them",
        "medium",
        "https://github.com/nyu-systems/Grendel-GS/issues/9",
    ),
    Symptom(
        "accelerate-refuses",
        (When((r"doesn't support faster communication broadband via P2P or IB",)),),
        "Accelerate refuses to start on these GPUs unless NCCL's P2P and InfiniBand are off",
        "export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1 before the start, or start by accelerate "
        "launch, which sets them",
        "high",
        "https://github.com/QwenLM/Qwen-VL/issues/447",
    ),
    Symptom(
        "ranks-missing",
        (
            When(
                (
                    r"(?:waiting for (?:clients|workers)\.|Timed out after)[^\n]{0,60}\d+/\d+ "
                    r"(?:clients|workers) joined",
                )
            ),
        ),
        "not all ranks have started, so the others wait in the start",
        "compare WORLD_SIZE, --nnodes and --nproc-per-node with what was started, and look into "
        "the logs of the hosts that are missing",
        "high",
        "https://github.com/pytorch/pytorch/pull/111805",
    ),
    Symptom(
        "id-not-told",
        (
            When(
                (
                    r"retr(?:ei|ie)ving ncclUniqueId from \[0\][^\n]{0,200}got error"
                    r"|Timeout waiting for key: default_pg",
                )
            ),
        ),
        "ranks wait for rank 0 to tell NCCL's identifier, and it does not: it has failed, found no "
        "network interface, or is late (a barrier before slow preparation of data)",
        "look into rank 0's log first; let all ranks reach the first collective within the timeout "
        "(init_process_group(timeout=...))",
        "medium",
        f"{_NCCL}708",
    ),
    Symptom(
        "port-in-use",
        (
            # NCCL's own service for questions (RAS) does without its port.
            When((r"^(?![^\n]*NCCL WARN)[^\n]*(?:EADDRINUSE|[Aa]ddress already in use)",)),
        ),
        "the port of the rendezvous is taken, by another job or a process that an earlier one left",
        "choose another one (--master-port, --rdzv-endpoint host:0), or end that process",
        "high",
        f"{_TORCH}73320",
    ),
    # -- between hosts: RDMA
    Symptom(
        "hca-not-opened",
        (
            When((r"NET/IB ?: Unable to open device|ibv_open_device failed",)),
            When((r"libibverbs: Warning: couldn't open config directory|Failed to open device\b",)),
        ),
        "the process may not open a NIC that it sees: in a container the device is missing or not "
        "permitted, so its other ranks wait for it or all use TCP",
        "give the container /dev/infiniband (--device=/dev/infiniband, or an RDMA device plugin) "
        "and IPC_LOCK, or leave that NIC out on all hosts by NCCL_IB_HCA",
        "high",
        f"{_NCCL}451",
    ),
    Symptom(
        "rdma-gid",
        (
            When(
                (
                    r"ibv_modify_qp failed[^\n]{0,40}(?:Invalid argument|No such (?:device|file)"
                    r"|No data available|Cannot assign)",
                )
            ),
            When((r"ncclIbRoceGetVersionNum: (?:Invalid argument|No such)",)),
            When((r"ibv_query_gid failed",)),
        ),
        "the NIC's port has no usable address (GID) at the index in use, or the container does not "
        "see it",
        "list them (show_gids, or /sys/class/infiniband/*/ports/*/gids), set NCCL_IB_GID_INDEX to "
        "that of RoCE v2 with an IPv4 address on all hosts, or unset it; give the port an address",
        "medium",
        f"{_NCCL}1573",
    ),
    Symptom(
        "rdma-register",
        (
            When(
                (
                    r"(?:ibv_)?(?:exp_)?reg_(?:dmabuf_)?mr[^\n]{0,120} failed[^\n]{0,60}"
                    r"(?:Bad address|Invalid argument|not supported)"
                    r"|RegisterRdmaMemoryRegion failed",
                )
            ),
        ),
        "the NIC cannot register a GPU's memory (GPUDirect RDMA): nvidia_peermem is not loaded or "
        "not of this driver, DMA-BUF is not supported, or the GPU has none (GeForce)",
        "load nvidia_peermem (AMD: amdgpu_peermem), or update driver and kernel for DMA-BUF; "
        "NCCL_DMABUF_ENABLE=0 or NCCL_NET_GDR_LEVEL=LOC do without; leave expandable_segments out",
        "medium",
        f"{_NCCL}778",
    ),
    Symptom(
        "rdma-unreached",
        (
            When(
                (
                    r"(?:ibv_)?modify_qp failed[^\n]{0,40}(?:timed out|unreachable|No route)"
                    r"|[Ff]ailed to modify QP to RTR: (?:Connection timed out|Network is unr)",
                )
            ),
        ),
        "two NICs cannot reach each other by RDMA, though the hosts do by TCP: the GID in use is "
        "not routed (a link-local one, another subnet), or the rails are separate networks",
        "set NCCL_IB_GID_INDEX to RoCE v2 with a routed address (mostly 3), NCCL_CROSS_NIC=0 where "
        "only NICs of the same number are joined, and try ib_write_bw between that pair",
        "high",
        f"{_NCCL}2013",
    ),
    Symptom(
        "rdma-protection",
        (
            When((_COMPLETION.format(4),)),
            When((_COMPLETION.format(r"IBV_WC_LOC_PROT_ERR"),)),
            When((r"async[^\n]{0,90}local access violation",)),
        ),
        "a NIC was refused access to a GPU's memory (GPUDirect RDMA), most often since ACS or the "
        "IOMMU redirects what it sends on PCIe, or nvidia_peermem does not fit the driver",
        "try NCCL_NET_GDR_LEVEL=LOC: if it runs then, switch ACS off on the PCIe switches and the "
        "IOMMU to passthrough (topo-probe --check names them), and load nvidia_peermem anew",
        "medium",
        f"{_NCCL}304",
    ),
    Symptom(
        "port-error",
        (
            When((r"async(?:hronous)?(?: fatal| non-fatal)? event ?: port (?:error|down)",)),
            When((r"IBV_EVENT_PORT_ERR|mlx5\S* [^\n]{0,60}[Ll]ink down",)),
        ),
        "the link of a NIC went down while the job ran",
        "look at the counters of that port and of the switch (ibqueryerrors, ethtool -S, mlxlink), "
        "and replace its cable or transceiver",
        "high",
        f"{_NCCL}905",
    ),
    Symptom(
        "rdma-timeout",
        (
            When((_COMPLETION.format(12),)),
            When((r"(?:IBV_WC_RETRY_EXC_ERR|transport retry counter exceeded)",)),
        ),
        "a NIC got no reply from its peer in time: soon after the start the two cannot reach each "
        "other by RDMA (GID, VLAN, rails); later a link or switch drops packets, or the peer ended",
        "at the start set NCCL_IB_GID_INDEX to RoCE v2 (mostly 3) and try ib_write_bw between that "
        "pair; later look at link errors, PFC and ECN; NCCL_IB_TIMEOUT=22 bridges short failures",
        "high",
        f"{_NCCL}426",
    ),
    Symptom(
        "efa-missing",
        (
            When(
                (
                    r"NET/OFI[^\n]{0,80}(?:Could not find any optimal provider"
                    r"|No eligible providers|Unable to find|fi_getinfo\(\) call failed)"
                    r"|provider efa output empty list",
                )
            ),
        ),
        "the plugin for AWS' network finds no EFA device, so NCCL goes on over TCP or does not "
        "start",
        "attach EFA to the instance, give the container /dev/infiniband/uverbs* and memlock=-1, "
        "and install the EFA software of one version on host and image; fi_info -p efa lists "
        "devices",
        "high",
        f"{_NCCL}229",
    ),
    Symptom(
        "tcp-only",
        (
            When(
                (r"NET/IB ?: No device found|Failed to open libibverbs", r"via NET/Socket"),
                (r"NET/OFI",),
            ),
            When((r"NCCL_IB_DISABLE set (?:by environment )?to 1", r"via NET/Socket")),
        ),
        "NCCL finds no NIC for RDMA, or was told to use none, so hosts send over TCP",
        "unset NCCL_IB_DISABLE; see ibv_devinfo where the ranks run (in the container: libibverbs "
        "with its drivers, /dev/infiniband), and NCCL_IB_HCA",
        "medium",
        f"{_NCCL}952",
    ),
    Symptom(
        "half-port",
        (
            When((r"\bNVIDIA GB10\b",), busbw_GBps=(0.5, 16.0)),
            When((r"NET/IB ?: Using \[0\]roce(?:P2)?p1s0f\d(?::1)?/RoCE (?!\[1\])",)),
        ),
        "a port of a DGX Spark is two NICs of 100 Gb/s each, and NCCL uses one of them, or neither "
        "with large packets",
        "name both halves (NCCL_IB_HCA=rocep1s0f0,roceP2p1s0f0 for the first port), give each an "
        "address and MTU 9000, use a release of NCCL; topo-synth --format nccl-env writes these",
        "high",
        "https://github.com/NVIDIA/dgx-spark-playbooks/issues/102",
    ),
    Symptom(
        "gdr-distance",
        (When((r"GPU Direct RDMA Disabled for GPU \w+ / HCA \w+ \(distance \d > \d\)",)),),
        "a GPU and a NIC are too far apart on PCIe for GPUDirect RDMA, so data passes through the "
        "host's memory",
        "nothing where no NIC is nearer; else use the near ones (NCCL_IB_HCA). "
        "NCCL_NET_GDR_LEVEL=SYS forces it, and is often slower",
        "medium",
        f"{_NCCL}1151",
    ),
    Symptom(
        "gdr-module",
        (When((r"GPU Direct RDMA Disabled for (?:HCA|NIC)",)), When(findings=("no-gdr",))),
        "GPUDirect RDMA is off for the NICs, so data passes through the host's memory: neither "
        "nvidia_peermem nor DMA-BUF is there",
        "load nvidia_peermem after the NIC's driver (and build the driver anew with it), or use "
        "the open kernel modules, with which DMA-BUF works",
        "medium",
        f"{_NCCL}1510",
    ),
    # -- inside a host
    Symptom(
        "acs",
        (
            When((r"ACSCtl:\s+SrcValid\+[^\n]{0,40}ReqRedir\+",)),
            When(findings=("acs-redirect",)),
        ),
        "ACS sends what GPUs write to each other on PCIe up to the CPU, which makes P2P slow, "
        "hang, or give wrong results",
        "switch ACS off in the BIOS, or on each bridge (setpci -s BRIDGE ECAP_ACS+6.w=0000), and "
        "the IOMMU off or to passthrough; NCCL_P2P_DISABLE=1 does without P2P",
        "high",
        f"{_NCCL}2079",
    ),
    Symptom(
        "iommu",
        (
            When((r"Missing \"(?:amd_)?iommu=(?:pt|on)\" from kernel command line",)),
            When(findings=("iommu-translating",)),
            When(
                (r"(?:DMAR|AMD-Vi)[^\n]{0,60}(?:IO_PAGE_FAULT|PTE \w+ [Aa]ccess is not set|fault)",)
            ),
        ),
        "the IOMMU translates what GPUs and NICs write to each other, with which P2P hangs or is "
        "slow",
        "boot with iommu=pt (AMD: amd_iommu=on iommu=pt), or switch the IOMMU off in the BIOS; "
        "NCCL_P2P_DISABLE=1 tells whether it is that",
        "medium",
        "https://github.com/ROCm/vllm/issues/390",
    ),
    Symptom(
        "p2p-claimed",
        (When((r"P2P is disabled between NVLINK connected GPUs",)),),
        "the driver refuses P2P between GPUs that NVLinks join: the fabric or the bridge is not "
        "up, or MIG, confidential computing or a container hides them from each other",
        "see nvidia-smi nvlink -s and nvidia-smi topo -p2p r; seat the bridge, start the fabric "
        "manager, give the container all GPUs of the pair",
        "medium",
        f"{_NCCL}340",
    ),
    Symptom(
        "p2p-none",
        (
            When(findings=("p2p-refused",)),
            When(
                (r"P2P is disabled between connected GPUs|lacks GPU P2P capability or P2P test fa",)
            ),
            When(
                (r"peer access is not supported between these two devices",),
                (r"transport/shm\.cc:\d+ [^\n]{0,60}peer access is not supported",),
            ),
        ),
        "the GPUs do not reach each other directly (P2P), so all they send passes through the "
        "host's memory: GeForce cards have none in stock drivers, else ACS, the IOMMU or a "
        "container forbids it",
        "topo-probe --check says which; where the cards have none nothing helps but fewer, larger "
        "messages, and pipelines in place of tensor parallelism",
        "medium",
        f"{_VLLM}3710",
    ),
    Symptom(
        "p2p-hangs",
        (
            When((r"via P2P/(?:IPC|direct pointer|CUMEM)", _HANGS), (r"via NET/",)),
            When(
                (r"via P2P/(?:IPC|direct pointer|CUMEM)",),
                (r"via NET/", r"Init COMPLETE|Connected all trees|algbw"),
            ),
        ),
        "the log ends where GPUs begin to write to each other directly (P2P): on PCIe that hangs "
        "where ACS or the IOMMU redirects it, or the driver claims P2P that does not work",
        "try NCCL_P2P_DISABLE=1 (vLLM: --disable-custom-all-reduce too); if it runs then, switch "
        "ACS off and the IOMMU to passthrough in BIOS and kernel, and update the driver",
        "low",
        f"{_NCCL}631",
    ),
    Symptom(
        "vgpu-library",
        (
            When(
                (r"libvgpu\.so|\[HAMI-core|HAMI-core ", r"NCCL INFO|using nccl==|[Tt]ensor"),
                (r"Init COMPLETE",),
            ),
        ),
        "a library that shares GPUs between containers (HAMi's libvgpu.so) stands between the "
        "program and the driver, and NCCL's start hangs or fails in it",
        "give the container whole GPUs and set CUDA_DISABLE_CONTROL=true, or leave the library out "
        "(LD_PRELOAD)",
        "medium",
        "https://github.com/Project-HAMi/HAMi/issues/2641",
    ),
    Symptom(
        "nccl-start-hangs",
        (
            When(
                (r"vLLM is using nccl==|Found nccl from library",),
                (
                    r"Init COMPLETE|Custom allreduce|Graph capturing|KV cache|Loading model"
                    r"|via NET/|NCCL WARN|[Ee]rror",
                ),
            ),
        ),
        "the log ends in NCCL's start, before the ranks are joined; most often GPUs do not reach "
        "each other as the driver says (P2P: ACS, IOMMU), else a library between program and "
        "driver",
        "run with NCCL_DEBUG=INFO to see the last line of each rank; try NCCL_P2P_DISABLE=1 with "
        "--disable-custom-all-reduce, and a start without preloaded libraries (LD_PRELOAD)",
        "low",
        f"{_VLLM}8058",
    ),
    Symptom(
        "pairs-as-hosts",
        (
            When(
                (
                    r"nRanks (?P<ranks>\d+) nNodes 1 localRanks (?P=ranks)\b",
                    r"\[send\] via NET/",
                )
            ),
            When(
                (
                    r"^(?P<host>[\w.-]+):\d+:\d+ [^\n]*rank (?P<rank>\d+) nRanks (?P<ranks>\d+) "
                    r"nNodes (?P<nodes>[2-9]\d*) localRanks \d+ localRank 0\b[^\n]*\n"
                    r"(?:[^\n]*\n){0,400}(?P=host):\d+:\d+ [^\n]*rank (?!(?P=rank) )\d+ "
                    r"nRanks (?P=ranks) nNodes (?P=nodes) localRanks \d+ localRank 0\b",
                )
            ),
        ),
        "GPUs of one host send to each other over the network: NCCL takes pairs of them (NVLink "
        "bridges, containers) for hosts of their own, or finds the NICs nearer than the GPUs",
        "set NCCL_NET_DISABLE_INTRA=1, give all ranks of a host the same container and hostname "
        "(NCCL_HOSTID), and compare",
        "medium",
        f"{_NCCL}2345",
    ),
    Symptom(
        "dev-nodes",
        (
            When(
                (r"RCCL version ?:? ?2\.30\.[0-4]\b", r"MI250|MI210|gfx90a"),
            ),
        ),
        "RCCL 2.30.4 counts paths through another GPU as direct links on MI250 and finds half of "
        "the channels: half the rate or less",
        "use the RCCL of ROCm 7.14 or later, or one before 2.30",
        "high",
        "https://github.com/ROCm/rocm-systems/pull/7792",
    ),
    Symptom(
        "no-ring",
        (When(findings=("simple-order",)), When(findings=("nccl-no-ring",))),
        "NCCL's search finds no ring over the PCIe of these GPUs and uses one channel",
        "check that each GPU has all of its lanes (slot, riser, BIOS); try another version of "
        "NCCL: 2.25.1 and later ask for 18 GB/s between GPUs of compute capability 10.0 and more",
        "medium",
        f"{_NCCL}1637",
    ),
    Symptom(
        "narrow-pcie",
        (
            When((r"LnkSta:\s+Speed [^\n]{0,30}Width x\d+ \(downgraded\)",)),
            When(findings=("narrow-pcie",)),
        ),
        "a card has fewer PCIe lanes than it could use: the slot, a riser, or lanes that it shares",
        "seat it in a slot with all lanes of a CPU, without a riser, and set the slot's "
        "bifurcation in the BIOS; all ranks wait for the slowest card",
        "high",
        "https://github.com/noonghunna/club-3090/pull/895",
    ),
    Symptom(
        "pcie-at-rest",
        (
            When((r"LnkSta:\s+Speed 2\.5GT/s(?: \(downgraded\))?, Width x(?:8|16)(?! \(d)",)),
            When(findings=("slow-pcie-now",)),
        ),
        "a PCIe link runs at 2.5 GT/s, as links of GPUs do at rest; it is a fault only if it stays "
        "so under load",
        "look again while the GPU copies (nvidia-smi -q -d PERFORMANCE; nvbandwidth); if it stays "
        "at 2.5 GT/s, look at the riser, and at ASPM and the slot's generation in the BIOS",
        "low",
        "https://github.com/janhq/jan/issues/183",
    ),
    Symptom(
        "custom-allreduce-off",
        (
            When(
                (r"Custom allreduce is disabled because it's not supported on more than two PCIe",)
            ),
        ),
        "vLLM's own allreduce for small messages is off on more than two GPUs without NVLink, "
        "however well they reach each other, so NCCL's latency counts",
        "nothing is broken; fewer ranks (TP=2 with pipelines), or a build with an allreduce for "
        "PCIe",
        "medium",
        f"{_VLLM}56128",
    ),
    Symptom(
        "custom-allreduce-fails",
        (When((r"custom_all_reduce\.cuh:\d+ '?invalid argument",)),),
        "vLLM's own allreduce cannot share a rank's memory with the others: memory of expandable "
        "segments, an old driver, or GPUs that do not reach each other",
        "leave PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True out; else --disable-custom-all-"
        "reduce, with which NCCL does it",
        "medium",
        f"{_VLLM}49101",
    ),
    Symptom(
        "numa-balancing",
        (When((r"NUMA auto balancing enabled|numa_balancing\s*[=:]\s*1\b",)),),
        "the kernel moves pages between NUMA nodes while GPUs and NICs use them, which makes calls "
        "slow now and then",
        "switch it off: sysctl kernel.numa_balancing=0",
        "low",
        "https://github.com/ROCm/rccl/pull/696",
    ),
    # -- the program
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
        f"{_NCCL}296",
    ),
    Symptom(
        "truncated",
        (When((r"message truncated ?: receiving \d+ bytes instead of \d+",)),),
        "two ranks expect messages of different sizes: they call with different sizes, or have "
        "other versions or settings of NCCL",
        "compare NCCL's version and NCCL_ variables of all hosts (BUFFSIZE, P2P_NET_CHUNKSIZE, "
        "ALGO), then the sizes of the call",
        "medium",
        f"{_NCCL}1328",
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
        f"{_NCCL}2186",
    ),
    # -- what follows from causes elsewhere
    Symptom(
        "peer-ended",
        (
            When(
                (
                    r"[Cc]onnection closed by (?:remote )?peer|Connection reset by peer"
                    r"|Socket recv failed while polling|ncclRemoteError"
                    r"|remote process exited or there was a network error"
                    r"|NCCL communicator was aborted"
                    r"|Call to recv from \S+ failed|[Bb]roken pipe",
                )
            ),
        ),
        "another rank has ended or left the communicator; the cause is in its log, not here",
        "find the rank that failed first, by time: its log or traceback names the cause (memory, "
        "an exception, a kill)",
        "low",
        f"{_NCCL}795",
    ),
    Symptom(
        "watchdog",
        (When((_HANGS,)),),
        "a collective did not end in time; that is rarely the network: most often a rank did not "
        "call it, since it failed, waits elsewhere, or takes another branch",
        "find the rank that does not name this call (TORCH_NCCL_TRACE_BUFFER_SIZE=2000 writes what "
        "each waits for, py-spy dump shows where it is); a longer timeout for slow data or saving",
        "low",
        f"{_TORCH}118369",
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
)
