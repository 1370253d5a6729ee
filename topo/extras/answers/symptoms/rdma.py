"""Symptoms of RDMA between hosts."""

from __future__ import annotations

from ..symptom import Symptom, When
from .common import NCCL, STANDS

# The message of an InfiniBand completion: "with error 12", "status=12", "status=NAME(12)".
_COMPLETION = r"Got completion [^\n]{{0,120}}with (?:error |status=)(?:\w+\()?{}\b"

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "hca-not-opened",
        (
            When((r"NET/IB ?: Unable to open device|ibv_open_device failed",)),
            When(
                (r"libibverbs: Warning: couldn't open config directory|Failed to open device\b",),
                # Mooncake's line of any failure to start.
                (r"Failed to open device \S+ on port ",),
            ),
        ),
        "the process may not open a NIC that it sees: in a container the device is missing or not "
        "permitted, so its other ranks wait for it or all use TCP",
        "give the container /dev/infiniband (--device=/dev/infiniband, or an RDMA device plugin) "
        "and IPC_LOCK, or leave that NIC out on all hosts by NCCL_IB_HCA",
        "high",
        f"{NCCL}451",
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
            When((r"No suitable GID found on \w",)),
        ),
        "the NIC's port has no usable address (GID) at the index in use, or the container does not "
        "see it; on InfiniBand rather ports of different subnets, or of Ethernet and InfiniBand",
        "list them (show_gids, or /sys/class/infiniband/*/ports/*/gids), set NCCL_IB_GID_INDEX "
        "(Mooncake: MC_GID_INDEX) to that of RoCE v2 with an IPv4 address on all hosts, or unset "
        "it; give the port an address; compare link_layer of the ports used (ibv_devinfo)",
        "medium",
        f"{NCCL}1573",
    ),
    Symptom(
        "mooncake-gid",
        (
            When((r"RDMA device: \S+ LID: 0, GID: \(GID_Index \d+\) fe:80:",)),
            When(
                (r"(?i)mooncake", r"(?i)link-local[^\n]{0,40}\bGID\b|\bGID\b[^\n]{0,60}link-local")
            ),
        ),
        "Mooncake has chosen an address (GID) of the RoCE port that holds on one link alone "
        "(fe80::), so that other hosts are not reached",
        "set MC_GID_INDEX on all hosts to the index of a routed RoCE v2 address (show_gids), or "
        "update Mooncake",
        "medium",
        "https://github.com/ROCm/ATOM/issues/1748",
    ),
    Symptom(
        "dma-buf-topology",
        (When((r"dma-buf attach failed: topology not",)),),
        "the driver does not let this NIC reach the GPU's memory: R595 wants GPU and NIC below one "
        "root port or the NIC in an IOMMU group, which EFA on GB200 and GB300 is not",
        "stay with driver R580 and NVreg_GrdmaPciTopoCheckOverride=1 on such instances; elsewhere "
        "see iommu_group of the NIC in /sys/bus/pci/devices",
        "high",
        "https://github.com/NVIDIA/aicr/issues/2459",
    ),
    Symptom(
        "rdma-register",
        (
            When(
                (
                    r"(?:ibv_)?(?:exp_)?reg_(?:dmabuf_)?mr[^\n]{0,120} failed[^\n]{0,60}"
                    r"(?:Bad address|Invalid argument|not supported)"
                    r"|RegisterRdmaMemoryRegion failed|Mooncake memory registration failed"
                    r"|Failed to register memory 0x[0-9a-f]+: (?:Invalid argument|Bad address)"
                    r"|DMA BUF support\w* required for GPU RDMA without nvidia-peermem",
                )
            ),
        ),
        "the NIC cannot register a GPU's memory (GPUDirect RDMA): nvidia_peermem is not loaded or "
        "not of this driver, DMA-BUF is not supported, or the GPU has none (GeForce)",
        "load nvidia_peermem (AMD: amdgpu_peermem), or update driver and kernel for DMA-BUF; "
        "NCCL_DMABUF_ENABLE=0 or NCCL_NET_GDR_LEVEL=LOC do without; leave expandable_segments out",
        "medium",
        f"{NCCL}778",
    ),
    Symptom(
        "efa-register",
        (When((r"NET/OFI Unable to register memory \(type = 2\)[^\n]{0,60}RC: -22",)),),
        "NCCL 2.19 and later with libfabric of an EFA installer before 1.29.1: a GPU's memory "
        "cannot be registered",
        "install EFA's software 1.29.1 or later (host and image), or set "
        "FI_EFA_SET_CUDA_SYNC_MEMOPS=0",
        "high",
        "https://github.com/awslabs/awsome-distributed-ai/issues/203",
    ),
    Symptom(
        "spark-ring",
        (
            When(
                (
                    r"modify_qp[^\n]{0,40}(?:\b110\b|timed out)",
                    r"GB10\b|\b[Ss]parks?\b|rocep1s0f|roceP2p1s0f",
                    r"(?i)\bring\b(?! (?:\d|PXN))|\bmesh\b|switchless|\b(?:no|without a) switch",
                ),
            ),
        ),
        "DGX Sparks are joined by cables without a switch, so that each port leads to another "
        "host, and NCCL pairs ports by their number that no cable joins",
        "set NCCL_IB_SUBNET_AWARE_ROUTING=1 and leave NCCL_IB_MERGE_NICS=1, give each cable a "
        "subnet of its own, and join port 0 of a host with port 1 of the next",
        "high",
        "https://github.com/tonyd2wild/GLM-5.3-Int4-Int8Mix-TP4-4x-DGX-Spark/issues/2",
    ),
    Symptom(
        "rdma-unreached",
        (
            When(
                (
                    r"(?:ibv_)?modify_qp failed[^\n]{0,40}(?:timed out|unreachable|No route)"
                    r"|[Ff]ailed to modify QP to RTR\b[^\n]{0,8}"
                    r"(?:Connection timed out|Network is unr)"
                    r"|ibrc\.cpp:\d+: non-zero status: 110\b",
                )
            ),
        ),
        "two NICs cannot reach each other by RDMA, though the hosts do by TCP: the GID in use is "
        "not routed (a link-local one, another subnet), or the rails are separate networks",
        "set NCCL_IB_GID_INDEX to RoCE v2 with a routed address (mostly 3), NCCL_CROSS_NIC=0 where "
        "only NICs of the same number are joined, and try ib_write_bw between that pair",
        "high",
        f"{NCCL}2013",
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
        f"{NCCL}304",
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
        f"{NCCL}905",
    ),
    Symptom(
        "nic-fault",
        (When((r"local catastrophic error|async[^\n]{0,40}event ?: device fatal",)),),
        "a NIC or its firmware failed while the job ran",
        "look into dmesg (mlx5_core, health), reset the NIC (mlxfwreset) or power the host off and "
        "on, update its firmware; leave it out by NCCL_IB_HCA until then",
        "high",
        f"{NCCL}230",
    ),
    Symptom(
        "rdma-timeout",
        (
            When((_COMPLETION.format(12),)),
            When((r"IBV_WC_RETRY_EXC_ERR|[Tt]ransport retry count(?:er)? exceeded",)),
        ),
        "a NIC got no reply from its peer in time: soon after the start the two cannot reach each "
        "other by RDMA (GID, VLAN, rails); later a link or switch drops packets, or the peer ended",
        "at the start set NCCL_IB_GID_INDEX to RoCE v2 (mostly 3) and try ib_write_bw between that "
        "pair; later look at link errors, PFC and ECN; NCCL_IB_TIMEOUT=22 bridges short failures",
        "high",
        f"{NCCL}426",
    ),
    Symptom(
        "gid-changed",
        (When((r"GID table change",)),),
        "the addresses (GIDs) of a NIC's port changed while the job ran: its link went down and "
        "came back, or something set its IP address anew (DHCP, NetworkManager, a bond); NCCL goes "
        "on with the old one",
        "look into dmesg and the log of the network service for what changed it, give the NICs "
        "fixed addresses, and start the job anew; update NCCL",
        "medium",
        f"{NCCL}394",
    ),
    Symptom(
        "efa-missing",
        (
            When(
                (
                    r"NET/OFI[^\n]{0,80}(?:Could not find any optimal provider"
                    r"|No eligible providers|Unable to find|fi_getinfo\(\) call failed)"
                    r"|provider efa output empty list|fi_getinfo: -61\b",
                )
            ),
        ),
        "the plugin for AWS' network finds no EFA device, so NCCL goes on over TCP or does not "
        "start",
        "attach EFA to the instance, give the container its /dev/infiniband/uverbs* (by the device "
        "plugin; not all of /dev/infiniband, where B200 hosts have other NICs) and memlock=-1, and "
        "install one version of EFA's software on host and image; fi_info -p efa lists devices",
        "high",
        f"{NCCL}229",
    ),
    Symptom(
        "rdma-userspace",
        (
            When(
                (
                    r"no userspace device-specific driver found"
                    r"|version .?IBVERBS_PRIVATE_\d+.? not found",
                )
            ),
        ),
        "libibverbs has no driver for the NICs in this image, or one of another version, so that "
        "no RDMA device is found",
        "install rdma-core (ibverbs-providers), or the NIC's own software, in one version in the "
        "image, and mount no single libraries of the host into it; ibv_devinfo shows the result",
        "medium",
        "https://github.com/bytedance/byteps/issues/313",
    ),
    Symptom(
        "nvshmem-peermem",
        (When((r"neither nv_peer_mem,? or nvidia_peermem detected",)),),
        "NVSHMEM (DeepEP) finds no nvidia_peermem, without which it uses no NIC: it is not loaded, "
        "or it is and this NVSHMEM looks for files that it does not make",
        "modprobe nvidia_peermem on the host, not the older nv_peer_mem; if lsmod shows it, use "
        "DeepEP's patch of NVSHMEM or a later NVSHMEM",
        "medium",
        "https://github.com/deepseek-ai/DeepEP/pull/151",
    ),
    Symptom(
        "nvshmem-ibgda",
        (
            When(
                (
                    r"cannot allocate buffer on the specified memory type"
                    r"|mlx5dv_devx_umem_reg(?:_ex)? failed",
                )
            ),
        ),
        "NVSHMEM cannot register a GPU's memory for sends that GPUs start themselves (IBGDA, "
        "DeepEP's low latency): nvidia_peermem or an option of the driver is missing",
        "load nvidia_peermem in place of nv_peer_mem, set NVreg_EnableStreamMemOPs=1 and "
        'NVreg_RegistryDwords="PeerMappingOverride=1;" for the driver, and reboot',
        "medium",
        "https://github.com/deepseek-ai/DeepEP/issues/36",
    ),
    Symptom(
        "nvshmem-address",
        (When((r"Unable to create ah\b",)),),
        "NVSHMEM before 3.5 leaves a field of the NIC's address unset when GPUs are to drive it "
        "(IBGDA), which newer kernels refuse, most often on RoCE",
        "use NVSHMEM 3.5.19 or later with a DeepEP that fits it (with DeepEP's change 564), or "
        "patch 3.4.5 (memset of ah_attr)",
        "high",
        "https://github.com/NVIDIA/nvshmem/issues/21",
    ),
    Symptom(
        "deepep-queues",
        (
            When(
                (
                    r"DeepEP error: timeout \(dispatch CPU\)",
                    r"(?i)nvshmem\S{0,8}[ =:v>]{1,4}(?:ersion:? )?3\.(?:[5-9]|\d\d)\b",
                )
            ),
        ),
        "NVSHMEM 3.5.19 and later order their queues differently from what this DeepEP expects, "
        "so that ranks of other hosts never get its numbers",
        "use DeepEP with its change 564 (pull request), built against the same NVSHMEM, or "
        "NVSHMEM 3.4.5",
        "medium",
        "https://github.com/deepseek-ai/DeepEP/issues/707",
    ),
    Symptom(
        "deepep-timeout",
        (When((r"DeepEP error: timeout \(dispatch CPU\)",)),),
        "DeepEP waits for numbers of tokens from other ranks that do not come: it does not fit its "
        "NVSHMEM (3.5.19 and later), RDMA between the hosts does not work, or a rank is elsewhere",
        "compare the versions of NVSHMEM and DeepEP (its change 564 is needed from 3.5.19 on), try "
        "NVSHMEM's shmem_put_bw between the hosts, and look for a rank that failed first",
        "low",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/5067",
    ),
    Symptom(
        "gin-driver",
        (When((r"gin_host_gdaki\.cc:\d+ [^\n]{0,40}NCCL WARN DOCA failure|DOCA_ERROR_DRIVER",)),),
        "the NIC's driver refuses a queue that GPUs are to drive (GIN by GDAKI): the port asks for "
        "a global route header, which NCCL 2.30.7 does not give, or driver and firmware are old",
        "set NCCL_GIN_TYPE=2, with which the CPU drives it; else use a later NCCL, and update OFED "
        "or DOCA on the host",
        "medium",
        f"{NCCL}2237",
    ),
    Symptom(
        "gin-none",
        (
            When((r"(?i:gintype)\)? (?:!=|==) NCCL_GIN_TYPE_NONE",)),
            When(
                (
                    r"NCCL WARN (?:GIN not supported|No GIN-capable devices found"
                    r"|User requested GIN but not all ranks)",
                )
            ),
        ),
        "NCCL offers no sends that GPUs start (GIN), which DeepEP 2 wants even within a host: it "
        "joins NICs (fusion), NCCL_CROSS_NIC is 0, libmlx5 is too old, or there is no NIC for it",
        "try NCCL_IB_MERGE_NICS=0, unset NCCL_CROSS_NIC, update OFED or rdma-core, and use NCCL "
        "2.30.7 or later with a later DeepEP (EP_DISABLE_GIN=1 within a host)",
        "medium",
        "https://github.com/deepseek-ai/DeepEP/issues/628",
    ),
    Symptom(
        "gin-hangs",
        (
            When(
                (
                    r"(?<!GIN_IB_)\bGDAKI\b|NCCL_GIN_TYPE ?= ?3",
                    r"(?i)\b(?:hangs?|hanging|hung|stuck|deadlock\w*|forever|indefinite\w*)\b",
                ),
                (r"DOCA failure|DOCA_ERROR", r"NCCL_GIN_TYPE_NONE"),
            ),
        ),
        "GPUs wait for a NIC that they drive (GIN by GDAKI), and errors are not seen there: up to "
        "2.30.7 it takes an MTU of 4096 for given, and NICs of neighbours must reach each other",
        "raise the MTU to 4200 or more, or use a later NCCL; try NCCL_GIN_TYPE=2, and ib_write_bw "
        "between the NICs of neighbouring ranks",
        "low",
        f"{NCCL}1957",
    ),
    Symptom(
        "nvshmem-start",
        (
            When(
                (
                    r"init failed for (?:remote )?transport"
                    r"|nvshmem (?:detect topo|setup connections) failed",
                )
            ),
        ),
        "NVSHMEM (DeepEP) finds no RDMA with which it can start, or its NICs do not reach each "
        "other; the first lines above it say which",
        "set NVSHMEM_HCA_LIST to the NICs that are up and NVSHMEM_IB_GID_INDEX as for NCCL; see "
        "nvidia_peermem and the driver's options for IBGDA, and try ib_write_bw between the hosts",
        "low",
        "https://github.com/deepseek-ai/DeepEP/issues/55",
    ),
    Symptom(
        "gin-depth",
        (When((r"GIN_IB_PROXY does not support specifying qp depth",)),),
        "DeepEP V2 asks for queues of a depth that NCCL's sends by GPUs (GIN) have with GDAKI "
        "alone, and here NCCL lets the CPU send in their place (proxy)",
        "let NCCL use GDAKI (NCCL_GIN_TYPE=3), which needs a NIC and a driver for it, see "
        "NCCL_DEBUG=INFO; or a DeepEP with its pull request 646",
        "high",
        "https://github.com/deepseek-ai/DeepEP/pull/646",
    ),
    Symptom(
        "gin-meeting",
        (When((r"[Gg]inIbAllGather", STANDS)),),
        "NCCL's start of sends by GPUs (GIN) passes data to the next rank by RDMA, without a time "
        "limit, and that one's NIC is not reached: rails are separate networks, or NICs of one "
        "host cannot reach each other",
        "set NCCL_CROSS_NIC=0, or join the rails; NCCL_GIN_ENABLE=0 does without",
        "medium",
        f"{NCCL}2203",
    ),
    Symptom(
        "kv-without-fabric",
        (When((r"does not have fabric property",)),),
        "UCX (NIXL) cannot hand on this memory over the NVLink fabric between hosts, as it was not "
        "allocated for that, and goes on by RDMA or TCP",
        "let the server allocate its cache as fabric memory, if it can (with IMEX in the "
        "container), and see by UCX_PROTO_INFO=y what is used; else give UCX the NICs (UCX_TLS "
        "with rc)",
        "low",
        "https://github.com/vllm-project/vllm/pull/51377",
    ),
    Symptom(
        "ucx-no-transport",
        (When((r"no active messages transport to [^\n]{0,200}no peer failure handler",)),),
        "UCX is asked for connections that notice when the peer fails (as by NIXL), and none of "
        "the transports that UCX_TLS leaves does so",
        "add tcp, or rc, to UCX_TLS (or unset it), or update UCX; NIXL's option "
        "ucx_error_handling_mode=none does without the notice",
        "medium",
        "https://github.com/ai-dynamo/nixl/pull/1846",
    ),
    Symptom(
        "efa-group",
        (
            When(
                (
                    r"[Uu]nresponsive receiver|prov_err: Not a directory"
                    r"|NET/OFI [^\n]{0,160}completed with error[^\n]{0,80}"
                    r"(?:No route to host|err: 113|RC: 113)",
                )
            ),
        ),
        "an EFA peer does not answer: most often the security group does not allow all traffic "
        "from and to itself, or the instances are in different subnets; else the peer's process "
        "has ended",
        "add to the security group, inbound and outbound, all traffic with the group itself as "
        "source and destination; then look for a rank that ended first",
        "medium",
        "https://github.com/aws/aws-ofi-nccl/issues/156",
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
        f"{NCCL}952",
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
        f"{NCCL}1151",
    ),
    Symptom(
        "gdr-module",
        (When((r"GPU Direct RDMA Disabled for (?:HCA|NIC)",)), When(findings=("no-gdr",))),
        "GPUDirect RDMA is off for the NICs, so data passes through the host's memory: neither "
        "nvidia_peermem nor DMA-BUF is there",
        "load nvidia_peermem after the NIC's driver (and build the driver anew with it), or use "
        "the open kernel modules, with which DMA-BUF works",
        "medium",
        f"{NCCL}1510",
    ),
    Symptom(
        "ibgda",
        (
            When(
                (
                    r"cudaHostRegister with IoMemory failed|cannot allocate mlx5dv_devx_uar"
                    r"|GPU cannot map UAR of device|init failed for transport: IBGDA",
                )
            ),
        ),
        "NVSHMEM (DeepEP) lets GPUs drive the NIC (IBGDA), and this GPU may not map the NIC's "
        "registers: the driver's options for it are not set, or the container has no right to it",
        "set NVreg_EnableStreamMemOPs=1 and NVreg_RegistryDwords=PeerMappingOverride=1 for the "
        "module nvidia and reboot; start the container with --privileged and /dev/infiniband",
        "medium",
        "https://github.com/sgl-project/sglang/issues/12533",
    ),
    Symptom(
        "rdma-flushed",
        (When((_COMPLETION.format(5),)), When((_COMPLETION.format("IBV_WC_WR_FLUSH_ERR"),))),
        "a connection between two NICs had failed before this: its requests are dropped one by "
        "one, and the first error, here or at the peer, names the cause",
        "find the first error by time on both hosts (status 4, 10, 12; a port or process that "
        "ended); if all have 5, check that ACS is off and update the host's and NIC's firmware",
        "low",
        f"{NCCL}1353",
    ),
)
