"""NCCL's and RCCL's logs with their graph, as machines."""
