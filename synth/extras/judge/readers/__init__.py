"""Readers of the output of NCCL, RCCL and their benchmarks, one file per format."""
