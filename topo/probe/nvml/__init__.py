"""Queries to NVML, the NVIDIA driver's library."""
