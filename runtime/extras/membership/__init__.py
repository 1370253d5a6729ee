"""Change the ranks of a running process group: after a death, for a leave, for a join."""
