"""Read a machine from NCCL's or RCCL's log, in which they print their graph of it."""
