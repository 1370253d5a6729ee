"""Advise on hosts that cables join: rings, settings and files for NCCL and MLX, the next cable."""
