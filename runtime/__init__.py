"""Carrying schedules out with torch.distributed's point-to-point operations."""
