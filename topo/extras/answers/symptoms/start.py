"""Symptoms of the start: what NCCL finds, and what does not fit."""

from __future__ import annotations

from ..symptom import Symptom, When
from .common import NCCL, TESTS, TORCH, VLLM

SYMPTOMS: tuple[Symptom, ...] = (
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
        f"{NCCL}2160",
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
        f"{NCCL}1240",
    ),
    Symptom(
        "net-id",
        (When((r"Could not find NET with id \d+",)),),
        "NCCL's search found no path between the hosts, and its fallback names a NIC that is not "
        "there: in 2.25 and 2.26 since it has joined NICs (NIC fusion)",
        "use NCCL 2.27 or later; see that all ranks of a host see the same NICs (containers, "
        "NCCL_IB_HCA)",
        "medium",
        f"{NCCL}1748",
    ),
    Symptom(
        "net-missing",
        (
            When(
                (
                    r"Failed to initialize any NET plugin|NET/gIB ?: No device found"
                    r"|NCCL WARN Error: network \S[^\n]{0,40} not found",
                )
            ),
        ),
        "NCCL_NET, often set by the image of a cloud, names a network that finds no device here, "
        "or whose plugin is not loaded",
        "unset NCCL_NET (in the environment, /etc/nccl.conf and the script that the image sources) "
        "or set NCCL_NET=Socket; for speed give the container the NICs and the plugin's library",
        "medium",
        "https://github.com/NVIDIA-NeMo/Automodel/pull/3843",
    ),
    Symptom(
        "ofi-tuner",
        (When((r"NCCL WARN NET/OFI The tuner plugin can not be loaded when explicitly",)),),
        "the tuner of aws-ofi-nccl before 1.17 refuses to start where NCCL_ALGO or NCCL_PROTO is "
        "set, also by the plugin itself where EFA has no RDMA",
        "update aws-ofi-nccl to 1.17 or later; else unset NCCL_ALGO and NCCL_PROTO, or set "
        "NCCL_TUNER_PLUGIN to none",
        "high",
        "https://github.com/aws/aws-ofi-nccl/issues/982",
    ),
    Symptom(
        "no-algorithm",
        (When((r"no algorithm/protocol available",)),),
        "NCCL_ALGO or NCCL_PROTO leave nothing that this collective could use: there is no tree "
        "for Broadcast, and CollNet needs SHARP",
        "unset NCCL_ALGO and NCCL_PROTO (also in /etc/nccl.conf), or name what each collective has "
        "(NCCL_ALGO=Ring,Tree)",
        "medium",
        f"{NCCL}317",
    ),
    Symptom(
        "pci-path",
        (When((r"NCCL WARN Could not find real path of /sys/class/pci_bus",)),),
        "NCCL does not find the GPU's place on PCIe in /sys, as in WSL2 and some virtual machines "
        "and sandboxes, and old versions stop there",
        "use NCCL 2.9 or later (a newer torch), and see that the container shows "
        "/sys/class/pci_bus",
        "medium",
        f"{NCCL}573",
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
                    r"|(?:CUDA|HIP) error: invalid device ordinal"
                    r"|You requested gpus?: \[[^\n]{0,120}your machine only has: \[",
                )
            ),
        ),
        "a process asks for a GPU by a number that it does not see: more ranks per host than GPUs, "
        "or each of them takes several (-g), or others are hidden (CUDA_VISIBLE_DEVICES)",
        "start as many processes per host as nvidia-smi -L shows there in the same launch, with -g "
        "1; or one process with -g N",
        "high",
        f"{TESTS}263",
    ),
    Symptom(
        "gpus-hidden",
        (
            When(
                (r"transport/p2p\.cc:\d+ [^\n]{0,60}(?:Cuda|CUDA) failure (?:101 )?'invalid dev",),
                (r"cliqueSize (?:[2-9]|\d\d)",),
            ),
            When((r"nvmlDeviceGetHandleByPciBusId\(\) failed: Not Found",)),
        ),
        "a rank's process does not see the GPU of another rank of its host, whose memory it is to "
        "map: the job manager or the container gives each task its own GPU alone",
        "let all tasks of a host see all of its GPUs (srun --gpus-per-node with --gpu-bind=none in "
        "place of --gpus-per-task), and choose by LOCAL_RANK",
        "medium",
        f"{NCCL}1948",
    ),
    Symptom(
        "tests-apart",
        (
            When(findings=("separate-jobs",)),
            When(findings=("single-rank",), without=(r"(?:mpirun|mpiexec|srun) [^\n]*-np? 1\b",)),
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
        f"{TESTS}182",
    ),
    Symptom(
        "version-mismatch",
        (
            When(
                (
                    r"Mismatched NCCL version detected|NCCL version mismatch with remote peer"
                    r"|NCCL library is (?:too old|not backwards compatible)"
                    r"|undefined symbol:? [\"'`]?nccl[A-Z]\w+"
                    r"|NCCL [^\n]{0,120}'unknown result code'"
                    r"|Invalid config blocking attribute value -2147483648"
                    r"|application was compiled with too old version of NCCL",
                )
            ),
            When((r"NCCLWindowAllocator", r"(?i)segfault|segmentation fault|signal 11\b")),
        ),
        "ranks run different versions of NCCL, or another one than the program was built with",
        "use one image on all hosts, and see which libnccl.so is loaded (LD_LIBRARY_PATH, "
        "VLLM_NCCL_SO_PATH, nvidia-nccl-cu12 beside the system's)",
        "high",
        f"{TORCH}122571",
    ),
    Symptom(
        "nccl-not-loaded",
        (
            When(
                (
                    r"Failed to load NCCL library from|name 'ncclGetVersion' is not defined"
                    r"|libnccl\.so(?:\.2)?: cannot open shared object",
                )
            ),
        ),
        "the program finds no libnccl.so.2 that it can load: it is not installed, lies outside the "
        "search path, or is for another system (glibc, architecture)",
        "install nvidia-nccl-cu12 (or -cu13) beside torch, or name the file (VLLM_NCCL_SO_PATH, "
        "LD_LIBRARY_PATH); ldd on it shows what it lacks",
        "high",
        f"{VLLM}4257",
    ),
    Symptom(
        "library-missing",
        (
            When(
                (
                    r"error while loading shared libraries: \S+: cannot open shared object file"
                    r"|ImportError: lib(?:nccl|rccl|cudart|cudnn|cublas|cupti|nvshmem|mpi)"
                    r"[\w.+-]*: cannot open shared object file",
                )
            ),
        ),
        "the program does not find a library that it was built with",
        "add its directory to LD_LIBRARY_PATH on all hosts (mpirun -x LD_LIBRARY_PATH hands it "
        "on), or to /etc/ld.so.conf.d; ldd PROGRAM names what is missing",
        "high",
        f"{TESTS}85",
    ),
    Symptom(
        "nccl-not-built",
        (When((r"Distributed package doesn't have NCCL",)),),
        "this torch was built without NCCL, as those for Windows, macOS, CPUs and Jetson are",
        "use the backend gloo, or a build of torch for CUDA on Linux (WSL2 on Windows): python -c "
        '"import torch; print(torch.__version__, torch.distributed.is_nccl_available())"',
        "high",
        "https://github.com/meta-llama/llama3/issues/127",
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
        f"{NCCL}2428",
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
        f"{NCCL}241",
    ),
)
