"""Measurements between GPUs, brought back to the links they crossed."""
