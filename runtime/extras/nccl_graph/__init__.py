"""Set NCCL's graph file, which fixes its rings, for one communicator."""
