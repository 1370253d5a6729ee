"""Channels as in NCCL: orders of all ranks, each with an equal share of the buffer.

An order is a ring, or a chain that adds up and sends back.
"""
