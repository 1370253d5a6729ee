"""Readers of what NCCL, RCCL and their benchmarks print, a file a format; `read` tells them
apart.
"""
