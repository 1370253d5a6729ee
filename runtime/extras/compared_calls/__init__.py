"""Checks that all ranks of a process group make the same calls."""
