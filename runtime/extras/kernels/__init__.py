"""One-sided programs played on GPUs by one Triton kernel, a launch a rank and call."""
