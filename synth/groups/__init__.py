"""Plans for collectives of some of a machine's GPUs, which the others may help."""
