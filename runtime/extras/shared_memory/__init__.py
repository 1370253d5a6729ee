"""Runners for ranks on CPUs that share memory: all of them, or those of each host."""
