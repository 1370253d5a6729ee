"""Channels as NCCL has them: orders of all ranks with equal shares of the buffer, as rings or
chains.
"""
