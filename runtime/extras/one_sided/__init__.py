"""One-sided programs, for ranks that reach each other's memory, made without torch.

Runners execute them: shared memory on CPUs (shared_memory), kernels on GPUs (kernels).
"""
