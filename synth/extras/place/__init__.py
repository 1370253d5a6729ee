"""Placement of ranks on GPUs such that a job's communication takes the least time, with a bound."""
