"""Model stock NCCL and RCCL: the rings and chains that they find by themselves, and their pick."""
