"""Channels as in NCCL: orders of all ranks, each with an equal share of the buffer."""
