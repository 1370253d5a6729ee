"""Symptoms inside a host: P2P, PCIe, allreduce of its own."""

from __future__ import annotations

from ..symptom import Symptom, When
from .common import HANGS, NCCL, STANDS, TESTS, VLLM

# What says that a server came past NCCL's start, or that GPUs have NVSwitches with SHARP.
_STARTED = (
    r"Init COMPLETE|Custom allreduce|Graph capturing|KV cache|Loading model"
    r"|via NET/|NCCL WARN|[Ee]rror"
)
_NVSWITCH = r"\bG?B[23]00\b|\d ?x ?B[23]00\b"
# What people write of a model whose output is wrong.
_GARBAGE = (
    r"(?i)[`'\"]!{4,}|\b(?:gibberish|garbage(?! collect)|garbled|nonsense|degenerate)\b"
    r"|\bcorrupt\w*\b(?!/incomplete)"
    r"|wrong (?:data|output|results?|values)|silently wrong|repeated[- ]tokens?"
)


SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "acs",
        (
            When((r"ACSCtl:\s+SrcValid\+[^\n]{0,40}ReqRedir\+|ReqRedir\+,? CmpltRedir\+",)),
            When(findings=("acs-redirect",)),
        ),
        "ACS sends what GPUs write to each other on PCIe up to the CPU, which makes P2P slow, "
        "hang, or give wrong results",
        "switch ACS off in the BIOS, or on each bridge (setpci -s BRIDGE ECAP_ACS+6.w=0000), and "
        "the IOMMU off or to passthrough; NCCL_P2P_DISABLE=1 does without P2P",
        "high",
        f"{NCCL}2079",
    ),
    Symptom(
        "iommu",
        (
            When((r"Missing \"(?:amd_)?iommu=(?:pt|on)\" from kernel command line",)),
            When(findings=("iommu-translating",)),
            When(
                (r"(?:DMAR|AMD-Vi)[^\n]{0,60}(?:IO_PAGE_FAULT|PTE \w+ [Aa]ccess is not set|fault)",)
            ),
            When(
                (
                    r"iommu: Default domain type: Translated|IOMMU[^\n]{0,30}translated mode",
                    r"(?i)\b(?:hang|hung|stuck|freez|deadlock)",
                    r"NCCL|RCCL|P2P|all.?reduce|tensor.parallel",
                ),
                (r"via NET/",),
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
        "bar1-small",
        (When((r"mapping of buffer object failed|cudaErrorMapBufferObjectFailed",)),),
        "a GPU cannot map the memory of another one: its window on PCIe (BAR1) is smaller than its "
        "memory (Resizable BAR is off, or a 48 GB GeForce has 32 GB), or the driver patched for "
        "P2P does not know the card",
        "compare BAR1 and FB totals (nvidia-smi -q -d MEMORY); turn on Above 4G Decoding and "
        "Resizable BAR in the BIOS, use a patch for these cards, else NCCL_P2P_DISABLE=1",
        "medium",
        "https://github.com/tinygrad/open-gpu-kernel-modules/issues/36",
    ),
    Symptom(
        "static-bar1",
        (
            When(
                (
                    r"RMForceStaticBar1|(?i:static BAR1)|(?i:patched[^\n]{0,40}(?:driver|module))"
                    r"|\b\d{3}\.\d+\.\d+-p2p\b",
                    STANDS,
                    r"(?i)\bP2P\b",
                ),
                (r"NVLink[^\n]{0,20}\bNV\d", r"(?i)\bCNS\b|virtual machine|\bVM\b", r"NCCL WARN"),
            ),
        ),
        "a driver that was patched for P2P claims it, though it does not map all of the GPU's "
        "memory on PCIe (static BAR1), as where the GPU has a display: NCCL's start hangs; else "
        "the IOMMU or ACS",
        'set options nvidia NVreg_RegistryDwords="RMForceStaticBar1=1;PeerMappingOverride=1" in '
        "modprobe.d and reboot (see /proc/driver/nvidia/params), or a later patch; "
        "NCCL_P2P_DISABLE=1 does without",
        "low",
        "https://github.com/noonghunna/club-3090/issues/873",
    ),
    Symptom(
        "p2p-claimed",
        (When((r"P2P is disabled between NVLINK connected GPUs",)),),
        "the driver refuses P2P between GPUs that NVLinks join: the fabric or the bridge is not "
        "up, or MIG, confidential computing or a container hides them from each other",
        "see nvidia-smi nvlink -s and nvidia-smi topo -p2p r; seat the bridge, start the fabric "
        "manager, give the container all GPUs of the pair",
        "medium",
        f"{NCCL}340",
    ),
    Symptom(
        "vm-without-p2p",
        (
            When(
                (
                    r"(?i)\b(?:qemu|kvm|proxmox|vfio|virtual machine|hypervisor|q35)\b",
                    r"chipset (?:is )?not supported|^ *GPU\d+ +(?:(?:X|OK) +)*CNS\b"
                    r"|\bCNS\b[^\n=]{0,40}P2P|P2P[^\n=]{0,40}\bCNS\b",
                )
            ),
        ),
        "in a virtual machine the driver does not see the path between the GPUs on PCIe, and "
        "refuses P2P (CNS: chipset not supported), so all they send passes through the memory",
        "name the GPUs that the host lets reach each other: x-nv-gpudirect-clique=0 of QEMU's "
        "vfio-pci (Cloud Hypervisor: x_nv_gpudirect_clique), with the hypervisor not hidden",
        "medium",
        "https://github.com/noonghunna/club-3090/pull/890",
    ),
    Symptom(
        "p2p-none",
        (
            When(findings=("p2p-refused",)),
            When(
                (r"P2P is disabled between connected GPUs|lacks GPU P2P capability or P2P test fa",)
            ),
            # Of CUDA's sample p2pBandwidthLatencyTest, and of TensorRT-LLM.
            When(
                (
                    r"Device=\d+ CANNOT Access Peer Device=\d+",
                    r"(?i)\b(?:hang|hung|stuck|freez|slow|all.?reduce|NCCL)",
                )
            ),
            When((r"Can't enable access between nodes \d+ and \d+",)),
            When(
                (r"peer access is not supported between these two devices",),
                (
                    r"transport/shm\.cc:\d+ [^\n]{0,60}peer access is not supported",
                    r"custom_all_reduce\.cuh:\d+",
                ),
            ),
        ),
        "the GPUs do not reach each other directly (P2P), so all they send passes through the "
        "host's memory: GeForce cards have none in stock drivers, else ACS, the IOMMU or a "
        "container forbids it",
        "topo-probe --check says which; where the cards have none nothing helps but fewer, larger "
        "messages, and pipelines in place of tensor parallelism",
        "medium",
        f"{VLLM}3710",
    ),
    Symptom(
        "p2p-broken",
        (
            When(
                (
                    r"(?i)\b(?:hang|hung|stuck|freez|deadlock|spin)",
                    r"(?i)(?:unless|only (?:with|when|if)|works?|worked|working|succeeds?|fine|"
                    r"resolve[ds]?|fix(?:ed|es)?|workaround)\b[^\n]{0,80}(?:\n[^\n]{0,80}){0,4}"
                    r"(?:NCCL_P2P_DISABLE ?= ?1|(?:P2P (?:is )?|p2p )disabled)"
                    r"|(?i:NCCL_P2P_DISABLE ?= ?1[^\n]{0,60}(?:fixes|works|resolves|solves|runs))",
                ),
                (
                    r"(?i)(?:still|also|even) [^\n]{0,60}NCCL_P2P_DISABLE ?= ?1"
                    r"|NCCL_P2P_DISABLE ?= ?1[^\n]{0,40}(?:still|does not|doesn't|did not|didn't)",
                    r"gfx120[01]",
                ),
            ),
        ),
        "it runs without P2P and hangs with it: writes from GPU to GPU over PCIe do not arrive, "
        "most often since ACS or the IOMMU redirects them, else by a fault of the driver",
        "switch the IOMMU off or to passthrough (iommu=pt), and ACS off, in BIOS and kernel; "
        "update the driver; else keep NCCL_P2P_DISABLE=1 (vLLM, SGLang: and --disable-custom-all-"
        "reduce)",
        "medium",
        f"{NCCL}631",
    ),
    Symptom(
        "p2p-hangs",
        (
            When((r"via P2P/(?:IPC|direct pointer|CUMEM)", HANGS), (r"via NET/",)),
            When(
                (r"via P2P/(?:IPC|direct pointer|CUMEM)",),
                (r"via NET/", r"Init COMPLETE|Connected all trees|algbw"),
            ),
            # A report in words of cards that reach each other by PCIe alone.
            When(
                (
                    r"(?i)\b(?:hang|hung|stuck|freez|deadlock)",
                    r"(?i)\bP2P\b",
                    r"(?i)RTX (?:PRO )?[3-6]0[0-9]0|RTX (?:PRO )?6000|GeForce|\bL40S?\b",
                ),
                (
                    r"via NET/|NVLink|\bNV\d+\b",
                    r"(?i)(?:still|also|even) [^\n]{0,60}NCCL_P2P_DISABLE ?= ?1"
                    r"|NCCL_P2P_DISABLE ?= ?1[^\n]{0,40}(?:still|does not|doesn't|did not|didn't)",
                ),
            ),
        ),
        "it ends where GPUs begin to write to each other directly (P2P): on PCIe that hangs "
        "where ACS or the IOMMU redirects it, or the driver claims P2P that does not work",
        "try NCCL_P2P_DISABLE=1 (vLLM: --disable-custom-all-reduce too); if it runs then, switch "
        "ACS off and the IOMMU to passthrough in BIOS and kernel, and update the driver",
        "low",
        f"{NCCL}631",
    ),
    Symptom(
        "wrong-values",
        (When((r"Out of bounds values ?: [1-9]\d* FAILED",)),),
        "data change in transit between GPUs: P2P or GPUDirect RDMA through ACS or the IOMMU, a "
        "faulty GPU or link, or a fault of this version of NCCL",
        "try NCCL_P2P_DISABLE=1, NCCL_NET_GDR_LEVEL=LOC, pairs of GPUs, and another version of "
        "NCCL; what makes it right names the part; topo-probe --check looks for ACS and the IOMMU",
        "low",
        f"{TESTS}131",
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
        "nvls-start-hangs",
        (
            When((r"vLLM is using nccl==|Found nccl from library", _NVSWITCH), (_STARTED,)),
            When(
                (r"NVLS tuning: nChannels \d+",),
                (r"Init COMPLETE|NCCL WARN|[Ee]rror|algbw|out of memory",),
            ),
        ),
        "the log ends where GPUs join their NVSwitches: the switches' state is stale (the fabric "
        "manager was restarted without a reset of the GPUs), or NCCL 2.30.4 to 2.30.7 hang there",
        "reboot the host, or reset all GPUs with the fabric manager running; try "
        "NCCL_NVLS_ENABLE=0, and NCCL 2.28.9 or one after 2.30.7",
        "low",
        f"{VLLM}40604",
    ),
    Symptom(
        "nccl-start-hangs",
        (
            When(
                (r"vLLM is using nccl==|Found nccl from library",),
                (_STARTED, _NVSWITCH),
            ),
        ),
        "the log ends in NCCL's start, before the ranks are joined; most often GPUs do not reach "
        "each other as the driver says (P2P: ACS, IOMMU), else a library between program and "
        "driver",
        "run with NCCL_DEBUG=INFO to see the last line of each rank; try NCCL_P2P_DISABLE=1 with "
        "--disable-custom-all-reduce, and a start without preloaded libraries (LD_PRELOAD)",
        "low",
        f"{VLLM}8058",
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
        f"{NCCL}2345",
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
        (
            When(findings=("simple-order",), without=(r"Could not find NET with id",)),
            When(findings=("nccl-no-ring",)),
        ),
        "NCCL's search finds no ring over the PCIe of these GPUs and uses one channel",
        "check that each GPU has all of its lanes (slot, riser, BIOS); try another version of "
        "NCCL: 2.25.1 and later ask for 18 GB/s between GPUs of compute capability 10.0 and more",
        "medium",
        f"{NCCL}1637",
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
        f"{VLLM}56128",
    ),
    Symptom(
        "custom-allreduce-fails",
        (
            When(
                (
                    r"custom_all_reduce\.cuh?:\d+[^'(\n]{0,40}['(]?"
                    r"(?:invalid (?:argument|resource handle)|peer access is not supp"
                    r"|resource already mapped)",
                )
            ),
        ),
        "the allreduce of vLLM and SGLang for small messages cannot map the memory of another "
        "rank: GPUs that do not reach each other or are in another host, memory of expandable "
        "segments, or an old driver",
        "start with --disable-custom-all-reduce, with which NCCL does it; where the GPUs do reach "
        "each other, leave PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True out",
        "medium",
        f"{VLLM}49101",
    ),
    Symptom(
        "custom-allreduce-wrong",
        (
            When(
                (
                    r"(?i)custom[- ]all[- ]?reduce(?! is disabled)|\bcustom AR\b",
                    _GARBAGE,
                    r"(?i)\bP2P\b|\bdriver\b|peer (?:path|access|write)",
                ),
                (
                    r"(?i)(?:still|also|even) [^\n]{0,40}disable-custom-all-reduce",
                    r"(?i)disable-custom-all-reduce[^\n]{0,40}(?:still|not|n't|no) ",
                    r"disable-custom-all-reduce *\\?$|disable_custom_all_reduce=True",
                    r"(?:serve|launch_server|api_server)\b[^\n]*--disable-custom-all-reduce",
                    r"NCCL WARN",
                ),
            ),
        ),
        "the allreduce of vLLM for small messages gets wrong data, though NCCL gets right ones on "
        "the same path: found over PCIe with drivers patched for P2P, and with 595.91",
        "start with --disable-custom-all-reduce, with which NCCL does it over P2P all the same; "
        "then another release of the driver",
        "medium",
        "https://github.com/noonghunna/club-3090/issues/922",
    ),
    Symptom(
        "pcie-oneshot",
        (
            When(
                (
                    r"PCIe oneshot allreduce[^\n]*first dispatch|one-shot pull kernels?[^\n]*never",
                    STANDS,
                ),
                (r"NCCL WARN|Application startup complete",),
            ),
        ),
        "an allreduce that was made for PCIe polls for a flag of its peer that does not arrive: "
        "the GPUs write to each other through the CPU (PHB), or it reads where it should write",
        "switch it off (VLLM_ENABLE_PCIE_ALLREDUCE=0, --disable-custom-all-reduce); if NCCL hangs "
        "too, NCCL_P2P_DISABLE=1, then see IOMMU and ACS",
        "medium",
        "https://github.com/local-inference-lab/rtx6kpro/issues/21",
    ),
    Symptom(
        "flashinfer-hosts",
        (When((r"\[fd_exchange\] timed out connecting to",)),),
        "FlashInfer's allreduce over NVLink hands memory on by sockets in /tmp, which works within "
        "one host alone, and the group spans hosts without a common NVLink fabric (or containers); "
        "each attempt costs 30 s and memory",
        'switch the joined allreduce off: vLLM --compilation-config \'{"pass_config": '
        '{"fuse_allreduce_rms": false}}\' and VLLM_ALLREDUCE_USE_FLASHINFER=0, SGLang '
        "--enforce-disable-flashinfer-allreduce-fusion",
        "high",
        f"{VLLM}51986",
    ),
    Symptom(
        "symmetric-without-links",
        (When((r"CUDA driver error: invalid device ordinal",)),),
        "torch's symmetric memory, which vLLM and FlashInfer use for allreduce, maps the memory of "
        "GPUs that do not reach each other: cards on PCIe without P2P, or hidden from the process",
        "start vLLM with VLLM_ALLREDUCE_USE_SYMM_MEM=0 and pass_config fuse_allreduce_rms false; "
        "topo-probe --check says whether there is P2P",
        "medium",
        f"{VLLM}26525",
    ),
    Symptom(
        "oneccl",
        (
            When(
                (
                    r"UR_RESULT_ERROR_DEVICE_LOST|\bGuC\b[^\n]{0,60}time(?:d )?out",
                    r"(?i)oneCCL|\bCCL_|\bxccl\b|all_?reduce|Arc (?:Pro )?B\d\d\b",
                ),
            ),
        ),
        "allreduce of oneCCL faults on Intel's Arc cards (Battlemage): the default one of 2022.x "
        "hangs there, and 2021.17 can use a stale handle of another GPU's memory",
        "try CCL_ALLREDUCE=ring with oneCCL 2022 (torch 2.13), CCL_ZE_CACHE_OPEN_IPC_HANDLES=0 "
        "with 2021.17 (torch 2.12), or a later oneCCL",
        "medium",
        "https://github.com/uxlfoundation/oneCCL/issues/215",
    ),
    Symptom(
        "flashinfer-multicast",
        (When((r"\[SymmDeviceMemory\] Device does not support multicasting",)),),
        "FlashInfer's allreduce joined with the norm wants NVSwitches that add (multicast), and "
        "these GPUs have none for all ranks: bridges, PCIe, a container or confidential computing",
        "switch it off (vLLM: pass_config fuse_allreduce_rms false; SGLang: --enforce-disable-"
        "flashinfer-allreduce-fusion), or update vLLM and FlashInfer",
        "high",
        f"{VLLM}34891",
    ),
    Symptom(
        "flashinfer-autotune",
        (
            When(
                (
                    r"(?i)flashinfer[^\n]{0,20}autotun|_profile_single_kernel"
                    r"|\bTuning \S*(?:gemm|moe)\S*: +\d+%",
                    rf"(?i)\b(?:hangs?|hung|stuck|deadlock\w*)\b|{HANGS}"
                    r"|No available shared memory broadcast block"
                    r"|Application timeout caused pair closure",
                ),
                (
                    r"NCCL WARN|Application startup complete|Graph capturing|Capturing CUDA graphs",
                    r"(?i)illegal memory access|out of memory",
                ),
            ),
        ),
        "ranks go through FlashInfer's autotuning in different steps: one has its results in the "
        "cache and skips the collectives in which the others compare times",
        "while its bar (Tuning ...) moves it is slow, no more; else delete "
        "flashinfer_autotune_cache on all hosts, start without autotuning (vLLM: "
        "--no-enable-flashinfer-autotune), or use a later vLLM and FlashInfer",
        "medium",
        f"{VLLM}57423",
    ),
    Symptom(
        "flashinfer-fusion",
        (
            When(
                (
                    r"create_allreduce_fusion_workspace|trtllm_mnnvl_(?:ar|allreduce)\b"
                    r"|flashinfer_(?:comm_fusion|all_reduce)\.py|disable-flashinfer-allreduce-fusion"
                    r"|(?i:flashinfer all-?reduce[^\n_=]{0,20} fusion)",
                    r"(?i)\b(?:hang|hung|stuck|deadlock|freez)|rendezvous \("
                    r"|No available shared memory broadcast block",
                ),
                (r"NCCL WARN",),
            ),
        ),
        "the kernel of FlashInfer that joins allreduce and the norm after it waits for ranks that "
        "do not come: its memory is joined over too many ranks, or ranks start it differently",
        "switch it off (SGLang: --enforce-disable-flashinfer-allreduce-fusion; vLLM: pass_config "
        "fuse_allreduce_rms false), or update FlashInfer and the program",
        "medium",
        "https://github.com/sgl-project/sglang/issues/29073",
    ),
    Symptom(
        "symmetric-meeting",
        (
            When(
                (
                    r"_?symmetric_memory[^\n]{0,60}rendezvous|symm_mem\.rendezvous"
                    r"|rendezvous[^\n]{0,40}symmetric[-_ ]memory|MultimemAllGatherer",
                    STANDS,
                ),
                (r"NCCL WARN",),
            ),
        ),
        "ranks wait for each other where torch's symmetric memory is set up: the group spans hosts "
        "without a common NVLink fabric, the process sees some of the host's GPUs alone, or the "
        "fabric is not well",
        "do without: VLLM_ALLREDUCE_USE_SYMM_MEM=0 (SGLang: leave --enable-torch-symm-mem out, "
        "and a release after July 2026), or let the process see all GPUs; reboot a host where it "
        "hangs with all of them",
        "medium",
        f"{VLLM}38550",
    ),
    Symptom(
        "llama-split",
        (When((r"ggml-backend-meta\.cpp:\d+: GGML_ASSERT",)),),
        "this build of llama.cpp cannot divide the tensors of this model over these GPUs "
        "(--split-mode tensor): their number, or an operation that it does not know",
        "use --split-mode layer, or another number of GPUs (2, 4, 8), or a newer build",
        "medium",
        "https://github.com/ggml-org/llama.cpp/issues/26837",
    ),
    Symptom(
        "llama-without-nccl",
        (
            When(
                (
                    r"NCCL is unavailable, multi GPU performance will be suboptimal"
                    r"|NCCL not found, performance for multiple CUDA GPUs will be suboptimal",
                )
            ),
        ),
        "this llama.cpp was built without NCCL, so that its split by tensors is slow on several "
        "GPUs",
        "install NCCL with its headers (libnccl-dev) and build anew with GGML_CUDA_NCCL=ON; the "
        "split by layers does not need it",
        "low",
        "https://github.com/ggml-org/llama.cpp/pull/22729",
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
)
