"""Run one-sided programs on GPUs by one Triton kernel: one launch per rank and call."""
