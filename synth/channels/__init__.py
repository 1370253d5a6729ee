"""Channels as in NCCL: rings or chains through all ranks, each with an equal share of the
buffer.
"""
