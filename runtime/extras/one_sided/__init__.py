"""One-sided programs, for ranks that reach each other's memory, made without torch.

What plays them are the runners of shared memory on CPUs and of kernels on GPUs.
"""
