"""One-sided programs: ranks write into each other's memory. Made and simulated here, without torch.

Runners execute them: shared memory on CPUs (shared_memory), kernels on GPUs (kernels).
"""
