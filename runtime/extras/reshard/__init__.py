"""Move tensors from one mesh to another: what has to move, and calls that move it."""
