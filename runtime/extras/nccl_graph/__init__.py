"""NCCL's graph file, set in the environment around a communicator that NCCL makes."""
