"""Execution of schedules with torch.distributed's point-to-point operations."""
