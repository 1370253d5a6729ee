"""Move tensors from one mesh of ranks to another: find what has to move, and move it."""
