"""What every recorded machine reads into, counted."""

from __future__ import annotations

# Devices by kind (switches by family), and cables by kind: NVLinks and xGMI links one by one.
READ: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "hwloc/nvidiaDGX2.xml": (
        {"gpu": 16, "cpu": 2, "pcie": 12, "nvswitch": 12},
        {"pcie": 28, "smp": 1, "nvlink": 16 * 6 + 6 * 8},
    ),
    "hwloc/nvidiagpunumanodes.tar.bz2": ({"cpu": 2, "gpu": 6}, {"smp": 1, "pcie": 6}),
    "nccl_xml/aws/p5.48xl.xml": ({"gpu": 8, "cpu": 1, "pcie": 8, "nic": 32}, {"pcie": 48}),
    "nccl_xml/azure/ncv4-topo.xml": ({"gpu": 4, "cpu": 4, "nic": 1}, {"pcie": 5, "smp": 6}),
    "nccl_xml/oci/H100-topology.xml": (
        {"gpu": 8, "cpu": 2, "pcie": 8, "nic": 16, "nvswitch": 1},
        {"pcie": 32, "smp": 1, "nvlink": 144},
    ),
    "nccl_xml/rccl/topo_16p1h.xml": (
        {"gpu": 16, "cpu": 4, "pcie": 20, "nic": 8},
        {"pcie": 44, "smp": 6, "xgmi": 56},
    ),
    "nccl_xml/rccl/topo_3p_pcie.xml": (
        {"gpu": 3, "cpu": 2, "pcie": 3, "nic": 1},
        {"pcie": 7, "smp": 1},
    ),
    "nccl_xml/rccl/topo_4p3l.xml": (
        {"gpu": 4, "cpu": 1, "pcie": 6, "nic": 2},
        {"pcie": 12, "xgmi": 6},
    ),
    "nccl_xml/rccl/topo_8p6l.xml": (
        {"gpu": 8, "cpu": 2, "pcie": 8, "nic": 1},
        {"pcie": 17, "smp": 1, "xgmi": 24},
    ),
    "nccl_xml/rccl/topo_8p_940.xml": (
        {"gpu": 8, "cpu": 2, "pcie": 24, "nic": 8},
        {"pcie": 40, "smp": 1, "xgmi": 28},
    ),
    "nccl_xml/rccl/topo_8p_940vm.xml": (
        {"gpu": 8, "cpu": 2, "nic": 8},
        {"pcie": 16, "smp": 1, "xgmi": 28},
    ),
    "nccl_xml/rccl/topo_8p_pcie.xml": ({"gpu": 8, "cpu": 1, "pcie": 10, "nic": 1}, {"pcie": 19}),
    "nccl_xml/rccl/topo_8p_rome.xml": (
        {"gpu": 8, "cpu": 2, "pcie": 8, "nic": 1},
        {"pcie": 17, "smp": 1, "xgmi": 8},
    ),
    "nvlink/h100pcie-pair_R.txt": ({"gpu": 2}, {"nvlink": 12}),
    "smi/01-dgx1v-8xV100-mlx5x4_msccl-tools.txt": (
        {"gpu": 8, "nic": 4, "cpu": 2, "pcie": 4},
        {"pcie": 16, "smp": 1, "nvlink": 24},
    ),
    "smi/04-8xA100-nvswitch_stas00.txt": (
        {"gpu": 8, "cpu": 2, "nvswitch": 1},
        {"pcie": 8, "smp": 1, "nvlink": 96},
    ),
    "smi/08-l40s-4gpu-2nic-2numa_warpem-miss-alignment-106.txt": (
        {"gpu": 4, "nic": 2, "cpu": 2, "pcie": 1},
        {"pcie": 7, "smp": 1},
    ),
    "smi/09-pcie-8gpu-mlx5-2socket_lattice-quda-669.txt": (
        {"gpu": 8, "nic": 1, "cpu": 2, "pcie": 6},
        {"pcie": 15, "smp": 1},
    ),
    "smi/12-2x5090-PHB-with-p2p-GNS_club-3090-1229.txt": ({"gpu": 2, "cpu": 1}, {"pcie": 2}),
    "smi/13-a100pcie-4gpu-one-bridge-missing-mlx5_k8s-device-plugin-436.txt": (
        {"gpu": 4, "nic": 2, "cpu": 2, "pcie": 1},
        {"pcie": 7, "smp": 1, "nvlink": 12},
    ),
    "smi/19-7gpu-PIX-PHB-mlx4_find_string37354995983.txt": (
        {"gpu": 7, "nic": 1, "cpu": 1, "pcie": 2},
        {"pcie": 10},
    ),
    "smi/20-single-P4-numa-NA_HAMi-99.txt": ({"gpu": 1, "cpu": 1}, {"pcie": 1}),
}
