"""Symptoms of the machine: drivers, fabric, faults."""

from __future__ import annotations

from ..symptom import Symptom, When
from .common import HANGS, NCCL, STANDS, TESTS, TORCH, VLLM

# A server on the GPUs of the training, which keeps groups of the NVSwitches while it sleeps.
_COLOCATED = r"(?i)--colocate\b|\bcolocat[^\n]{0,80}sglang|sglang[^\n]{0,80}\bcolocat"
# Frames and errors of FlashInfer's kernel that joins allreduce and norm, by multicast.
_MNNVL_FRAMES = (
    r"trtllm_mnnvl_(?:allreduce|fused|ar)\w*|flashinfer_trtllm_fused_allreduce_norm"
    r"|(?i:mnnvl)[^\n]{0,80}\b(?:IMA|crash\w*|illegal)\b"
)


SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "fabric-manager",
        (
            When(
                (
                    r"[Ss]ystem not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY"
                    r"|cudaErrorSystemNotReady|NV_WARN_NOTHING_TO_DO"
                    r"|CUDA (?:[Ee]rror|failure):? 802\b",
                )
            ),
        ),
        "GPUs behind NVSwitches cannot be used before the fabric manager has set the switches up: "
        "it does not run, or its version is not the driver's",
        "install nvidia-fabricmanager in the driver's version and start it (systemctl enable --now "
        "nvidia-fabricmanager; from B200 on with nvlsm, and mlx5_ib and ib_umad loaded); "
        "nvidia-smi -q then has State: Completed under Fabric",
        "high",
        f"{TESTS}264",
    ),
    Symptom(
        "gpu-fault",
        (
            When(
                (
                    r"[Uu]ncorrectable (?:NVLink|ECC) error|(?:fallen|falls?) off (?:of )?the bus"
                    r"|(?i:\bxid(?: error)?[ :#]{1,2})"
                    r"(?:48|63|64|74|79|94|95|119|120|140|145|149|154|171)\b(?! is a GPU)"
                    r"|NVRM: Xid \([^)\n]*\): "
                    r"(?:48|63|64|74|79|94|95|119|120|140|145|149|154|171)\b"
                    r"|Unable to determine the device handle for GPU",
                )
            ),
        ),
        "a GPU or an NVLink has failed; what other ranks say follows from it",
        "look for Xid and SXid errors (dmesg), take the host out, reset its GPUs or power it off "
        "and on, and run dcgmi diag -r 3 before it is used again",
        "high",
        f"{TORCH}58155",
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
        f"{NCCL}1005",
    ),
    Symptom(
        "cuda-compat",
        (When((r"unsupported display driver / cuda driver combination",)),),
        "the libcuda that is loaded is not of the host's driver: an image's own one for newer CUDA "
        "(/usr/local/cuda/compat) that does not support this GPU or driver, or a driver that was "
        "updated without a reboot",
        "take the compat directory out of LD_LIBRARY_PATH and /etc/ld.so.conf.d of the image, or "
        "update the driver; reboot after an update",
        "high",
        "https://github.com/NVIDIA/nvidia-docker/issues/1256",
    ),
    Symptom(
        "kernel-not-built",
        (
            When(
                (
                    r"'?named symbol not found|hipErrorNoBinaryForGpu"
                    r"|with CUDA capability sm_\d+ is not compatible with the current PyTorch",
                )
            ),
        ),
        "NCCL, the test or the program was built without code for this GPU's architecture",
        "use a build that has it (NVCC_GENCODE for NCCL and nccl-tests, a newer wheel of torch and "
        "nvidia-nccl), and see which libnccl.so is loaded",
        "high",
        f"{NCCL}1372",
    ),
    Symptom(
        "no-kernel-image",
        (
            When(
                (r"no kernel image is available for execution|cudaErrorNoKernelImageForDevice",),
                (r"named symbol not found|CUDA capability sm_\d+ is not compatible",),
            ),
        ),
        "a kernel has no code for this GPU's architecture: that of NCCL, of the test or of the "
        "program; some versions of NCCL (2.28.3) also leave this error behind after a good start, "
        "and the next call of CUDA reports it",
        "use builds that have the architecture (cuobjdump --list-elf libnccl.so); if they do, and "
        "it fails only after NCCL's start, try another release of NCCL",
        "medium",
        f"{TORCH}164402",
    ),
    Symptom(
        "nccl-too-old",
        (
            When((r"ncclMaxSharedMem \d+ exceeds device/fn maxSharedMem \d+",)),
            When(
                (
                    r"enqueue\.cc:\d+ NCCL WARN Cuda failure 1 'invalid argument'"
                    r"|Cuda failure 1 .invalid argument",
                    r"2\.25\.1(?:-1)?\+cuda12",
                ),
                (r"(?:nvls|p2p|shm)\.cc:\d+ NCCL WARN",),
            ),
        ),
        "this NCCL's kernels do not start: before 2.26 they want more shared memory than GeForce "
        "RTX 50 and RTX PRO Blackwell have, and 2.25.1 for CUDA 12.8 fails so on others too",
        "use NCCL 2.26.2 or later (pip install -U nvidia-nccl-cu12), and see which libnccl.so is "
        "loaded",
        "high",
        f"{NCCL}1637",
    ),
    Symptom(
        "nccl-on-arm",
        (
            When(
                (r"ncclLocalOpAppend", r"GB10\b|GB[23]00|GH200|aarch64|\bGrace\b|sm_121|DGX Spark"),
                (r"NCCL version 2\.(?:29\.[3-9]|[3-9]\d)",),
            ),
        ),
        "on ARM (Grace, GB10) NCCL before 2.29.3, as built for the wheels of PyPI, loses slots of "
        "its proxy's queue; when none is left a rank spins for ever, without an error",
        "use NCCL 2.29.3 or later (pip install -U nvidia-nccl-cu13), or the libnccl2 of DGX OS; "
        "see which libnccl.so is loaded (NCCL_DEBUG=VERSION)",
        "high",
        f"{NCCL}2353",
    ),
    Symptom(
        "nccl-on-arm-hangs",
        (
            When(
                (
                    r"GB10\b|GB[23]00|GH200|aarch64|sm_121|DGX Spark",
                    r"(?i:nccl)\S{0,8}[ =:v]{1,4}(?:ersion )?2\.(?:28\.\d|29\.2)\b",
                    rf"{HANGS}|(?i:\b(?:hang|hung|wedge|stuck|deadlock)[^\n]{{0,60}}"
                    r"(?:under|sustained|load|mid-?training|\d ?min|\d ?h\b|step \d))",
                ),
                (
                    r"SeqNum=1,|ncclLocalOpAppend",
                    r"NCCL WARN|Traceback",
                    r"[Oo]ut[ O]?[Oo]f[ M]?[Mm]emory|out of memory",
                ),
            ),
        ),
        "a run on ARM (Grace, GB10) stops after a while with an NCCL before 2.29.3: its wheels of "
        "PyPI lose slots of the proxy's queue there, after which a rank spins for ever",
        "use NCCL 2.29.3 or later (pip install -U nvidia-nccl-cu13), or the libnccl2 of DGX OS; "
        "gdb or py-spy --native shows ncclLocalOpAppend in the rank that spins, if it is that",
        "low",
        "https://github.com/marin-community/marin/issues/7344",
    ),
    Symptom(
        "device-function",
        (When((r"invalid device function|hipErrorInvalidDeviceFunction",)),),
        "a library has no code for this GPU's architecture: that of RCCL, of NCCL or of the "
        "program, or GPUs of different architectures are used by one process",
        "use builds for these GPUs (AMD cards that are near another one: HSA_OVERRIDE_GFX_VERSION, "
        "such as 12.0.1 or 10.3.0), and one process for each kind of GPU",
        "medium",
        "https://github.com/ROCm/rccl/issues/2189",
    ),
    Symptom(
        "rccl-gfx12",
        (
            When(
                (
                    r"gfx120[01]|R9700|RX 90[67]0",
                    r"(?i)\b(?:hang|hung|deadlock|stuck|freez)|100 ?%",
                    r"(?i)RCCL|tensor.parallel|TP ?= ?\d|all.?reduce",
                ),
                (
                    r"hipIpc|invalid (?:argument|device function)",
                    r"(?i)host (?:reset|hang)|reboots|\bBMC\b|full-system hang|is reset by"
                    r"|machine (?:becomes|is) unresponsive|ROCm\D{0,9}(?:[89]|1\d)\.",
                ),
            ),
        ),
        "RCCL of ROCm 7.2 has no tuning for these GPUs and takes that of another architecture, "
        "with which allreduce hangs at full load",
        "set NCCL_PROTO=Simple, or use RCCL 2.28.3 or later (or that of ROCm 7.1)",
        "medium",
        f"{VLLM}40980",
    ),
    Symptom(
        "rccl-atomics",
        (
            When(
                (
                    r"NCCL WARN HIP failure (?:\d+ )?'(?:the )?operation cannot be performed in the"
                    r" present state",
                )
            ),
        ),
        "kernels of this RCCL (2.30) need atomic operations on PCIe, and the GPU's slot or virtual "
        "machine does not carry them, so that the first collective does not start",
        "see dmesg | grep -i atomic; move the card to a slot of the CPU, or in the virtual machine "
        "to a root port that passes AtomicOps on; else try another release of RCCL",
        "medium",
        "https://github.com/ROCm/legacy-rocm-build/issues/6520",
    ),
    Symptom(
        "vgpu-memory",
        (When((r"init\.cc:\d+ [^\n]{0,20}NCCL WARN Cuda failure (?:801 )?'operation not supp",)),),
        "the driver refuses the pool of memory that NCCL makes at its start, as a virtual GPU does "
        "whose unified memory is off",
        "turn on unified memory for the virtual GPU (enable_uvm in the hypervisor), or pass the "
        "whole GPU through; without virtual GPUs update the driver",
        "medium",
        f"{NCCL}2101",
    ),
    Symptom(
        "cumem-host",
        (When((r"transport/shm\.cc:\d+ [^\n]{0,60}peer access is not supported between",)),),
        "NCCL shares the host's memory by a call of CUDA that asks for P2P, which these GPUs do "
        "not have",
        "set NCCL_CUMEM_HOST_ENABLE=0",
        "high",
        f"{NCCL}1838",
    ),
    Symptom(
        "cumem",
        (
            When(
                (
                    r"(?:NCCL_CUMEM_(?:HOST_)?ENABLE|NCCL_SHM_DISABLE) ?= ?[01][^\n]{0,60}"
                    r"\b(?:fix(?:es|ed)|cures?d?|works?|worked|isolates?|resolve[sd]?|avoids?)\b"
                    r"|(?:fix(?:es|ed)|cure[sd]|works? (?:with|only)|resolve[sd]|unless)[^\n]{0,40}"
                    r"NCCL_CUMEM_(?:HOST_)?ENABLE ?= ?0",
                ),
                (r"(?i)(?:still|also|even) [^\n]{0,60}NCCL_CUMEM",),
            ),
        ),
        "what NCCL shares between ranks of a host by CUDA's virtual memory (cuMem) does not "
        "arrive: a container, a snapshot or a fault of that exchange",
        "keep the setting that makes it run (NCCL_CUMEM_HOST_ENABLE=0, NCCL_CUMEM_ENABLE=0), and "
        "look in a newer NCCL whether it is needed still",
        "medium",
        f"{NCCL}2350",
    ),
    Symptom(
        "no-gpus",
        (
            When(
                (
                    r"no CUDA-capable device is detected|No (?:CUDA|HIP) GPUs are available"
                    r"|hipErrorInvalidDevice\b|hipErrorNoDevice|no ROCm-capable device is detected"
                    r"|ProcessGroupNCCL is only supported with GPUs, no GPUs found",
                )
            ),
        ),
        "the process sees no GPU: CUDA_VISIBLE_DEVICES is empty or names others, the container "
        "was given none, or the driver is not loaded",
        "run nvidia-smi in the same place, and print CUDA_VISIBLE_DEVICES in the process that "
        "fails; containers need --gpus all, with ROCm --device=/dev/kfd --device=/dev/dri and the "
        "group of /dev/dri/render*",
        "medium",
        f"{TESTS}30",
    ),
    Symptom(
        "container-lost-gpus",
        (When((r"Failed to initialize NVML: Unknown Error",)),),
        "a running container has lost its right to the GPUs: systemd reloaded its units "
        "(systemctl daemon-reload, an update) and set the container's devices anew without them",
        "start the container anew; for good give it the devices (--device=/dev/nvidia0 ... or "
        "CDI), use cgroupfs as Docker's driver, or create links (nvidia-ctk system "
        "create-dev-char-symlinks --create-all)",
        "medium",
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
    ),
    Symptom(
        "driver-stub",
        (When((r"CUDA driver is a stub library|CUDA_ERROR_STUB_LIBRARY|cudaErrorStubLibrary",)),),
        "the program has loaded the toolkit's empty libcuda.so (.../lib64/stubs), which is for "
        "linking alone, in place of the driver's",
        "take the folder stubs out of LD_LIBRARY_PATH where it runs, and see by LD_DEBUG=libs "
        "which libcuda.so is loaded",
        "high",
        "https://github.com/horovod/horovod/issues/3831",
    ),
    Symptom(
        "gpu-exclusive",
        (When((r"CUDA-capable device(?:s|\(s\)) (?:are|is/are) busy or unavailable",)),),
        "a GPU in the mode for one process (E. Process in nvidia-smi) is opened by a second one: "
        "another job, or a rank that has not set its own device before the first call",
        "set the device of each rank first (torch.cuda.set_device), end what is left of earlier "
        "jobs, or nvidia-smi -c DEFAULT",
        "medium",
        f"{TESTS}369",
    ),
    Symptom(
        "device-not-set",
        (
            When(
                (r"(?:Cuda|CUDA) (?:failure|Runtime|error)[^\n]{0,20}invalid resource handle",),
                (r"custom_all_reduce",),
            ),
        ),
        "a stream or an event of one GPU is used while another one is the current device: the "
        "process has not set its device, or threads share it",
        "call torch.cuda.set_device(LOCAL_RANK), or cudaSetDevice in each thread, before the first "
        "collective; NCCL 2.12 and older need it with torch 2.3 and later",
        "medium",
        f"{TORCH}130414",
    ),
    Symptom(
        "device-assert",
        (When((r"device-side assert triggered",)),),
        "a kernel of the program found a wrong value, most often an index out of range (a token, a "
        "label, a position); NCCL's watchdog only reports it, and other ranks wait for this one",
        "look for the line with Assertion above it; run that rank with CUDA_LAUNCH_BLOCKING=1, and "
        "compare sizes of vocabulary, labels and positions with the data",
        "high",
        f"{NCCL}1504",
    ),
    Symptom(
        "llama-pool",
        (
            When(
                (
                    r"an illegal memory access was encountered",
                    r"ggml|llama\.cpp|llama-(?:server|cli|bench)",
                    r"-sm tensor|split-mode[ =]tensor|comm_allreduce_nccl|ncclDevKernel_AllReduce",
                ),
            ),
        ),
        "llama.cpp before July 2026 gave NCCL buffers of its pool that only their own GPU may use, "
        "so that large allreduces over P2P fault",
        "use a later build of llama.cpp, or build with GGML_CUDA_NO_VMM=ON; the split by layers "
        "does not use NCCL",
        "medium",
        "https://github.com/ggml-org/llama.cpp/pull/24491",
    ),
    Symptom(
        "flashinfer-mnnvl",
        (
            When(
                (
                    r"an illegal memory access was encountered|StreamCapture(?:Status)?Invalidated",
                    r"\bmnnvl\b|(?i:flashinfer[^\n]{0,40}mnnvl)"
                    r"|flashinfer_trtllm_fused_allreduce_norm|fused_allreduce_rms_norm",
                ),
                (r"custom_all_reduce\.cuh",),
            ),
        ),
        "FlashInfer's allreduce joined with the norm (mnnvl), which vLLM takes since 0.25, wants "
        "NVSwitches that add (multicast), and fails where these GPUs have none for all ranks",
        "start vLLM with pass_config fuse_allreduce_rms false, which is faster than its backend "
        "trtllm there, or use a later vLLM",
        "medium",
        f"{VLLM}48071",
    ),
    Symptom(
        "illegal-access",
        (When((r"an illegal memory access was encountered",), (_MNNVL_FRAMES,)),),
        "a kernel read or wrote outside its memory; NCCL's watchdog is often the first to notice, "
        "and neither it nor the network is the cause",
        "run with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer to see which kernel it is, and try "
        "the program without its own kernels (attention, quantization, graphs)",
        "medium",
        f"{VLLM}4108",
    ),
    Symptom(
        "nvls-slots",
        (
            When((r"Multicast memory[^\n]{0,40}CUDA error 2 'out of memory'",)),
            When((r"NVSwitch", r"Resource temporarily unavailable", r"\b2\.29\.")),
            When((r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory", _COLOCATED)),
        ),
        "the NVSwitches have no room for another group that adds in them (128 for all jobs): too "
        "many communicators, or a server on the same GPUs that keeps some while it sleeps; NCCL "
        "2.29 fails there where 2.28 went on without",
        "set NCCL_NVLS_ENABLE=0, or make fewer communicators (share process groups and meshes; "
        "FSDP makes some for each kind of sharding); with SGLang in the same job "
        "--enforce-disable-flashinfer-allreduce-fusion",
        "medium",
        f"{NCCL}2077",
    ),
    Symptom(
        "nvls-bind",
        (
            When(
                (r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory",),
                (r"Multicast memory[^\n]{0,40}CUDA error 2 'out of memory'", _COLOCATED),
            ),
            When((r"transport/nvls\.cc:\d+ [^\n]{0,40}NCCL WARN (?:Cuda|CUDA) failure",)),
        ),
        "NVSwitches refuse to add (NVLS): most often the fabric manager was restarted after the "
        "GPUs were set up; seldom NCCL 2.26 before 2.26.5 with a driver of CUDA 12.2",
        "reset all GPUs of the host or reboot it, with the fabric manager started in its order, or "
        "use a later NCCL; NCCL_NVLS_ENABLE=0 does without, more slowly",
        "high",
        f"{NCCL}1488",
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
        f"{NCCL}1647",
    ),
    Symptom(
        "imex-state",
        (
            When(
                (
                    r"Failed to get (?:new memory reference with rc|export ref for UUID)"
                    r"|Received import response from node id \d+ with failure status",
                )
            ),
            When(
                (
                    r"cuMemImportFromShareableHandle[^\n]{0,20}invalid resource handle",
                    r"(?i)\bimex\b|compute-?domain|GB[23]00",
                )
            ),
        ),
        "the IMEX service of a host runs with a state that is not the domain's: it started after "
        "the ranks, or its number in the domain changed, which it reads at its start alone",
        "restart the ranks' pods once all daemons of the ComputeDomain are ready, restart the "
        "daemon whose index changed (or reboot its host), and update the DRA driver",
        "medium",
        "https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/1418",
    ),
    Symptom(
        "fabric-handle",
        (
            When(
                (
                    r"cuMemCreate[^\n]{0,200}(?:not permitted|NOT_PERMITTED)"
                    r"|NOT_PERMITTED[^\n]{0,200}cuMemCreate",
                )
            ),
        ),
        "memory that can be shared over an NVLink fabric is asked for and refused: the container "
        "has no IMEX channel, or the GPUs have no fabric",
        "give the container /dev/nvidia-caps-imex-channels/channel0 (nvidia-modprobe makes it), or "
        "do without such memory where GPUs have no fabric (NCCL_MNNVL_ENABLE=0)",
        "medium",
        "https://github.com/microsoft/mscclpp/issues/467",
    ),
    Symptom(
        "spark-nvls",
        (
            When(
                (r"\b2\.30\.4\b", r"\bGB10\b|DGX Spark|\bsm_?12\.?1\b", STANDS),
                (r"2\.30\.4\b[^\n]{0,40}\bworks", r"NCCL WARN"),
            ),
        ),
        "NCCL 2.30.4 hangs on DGX Sparks (GB10), which have no NVSwitch, in its code for adding in "
        "the switches (NVLS), most often while the weights of experts are loaded",
        "set NCCL_NVLS_ENABLE=0 on all hosts, or use NCCL 2.30.3, or a release after 2.30.4",
        "medium",
        f"{NCCL}2167",
    ),
    Symptom(
        "fabric-not-ready",
        (When(findings=("fabric-not-completed",)), When(findings=("fabric-unhealthy",))),
        "the NVLink fabric of a GPU is not registered, or not well, so NVLink through the switches "
        "does not work",
        "see what nvidia-smi -q says under Fabric, restart nvidia-fabricmanager (on NVL72 nvidia-"
        "imex), then reset the GPUs",
        "high",
        f"{NCCL}1672",
    ),
)
