"""Parts of topo-probe, which shows a machine's topology: GPUs, hosts, switches and links."""
