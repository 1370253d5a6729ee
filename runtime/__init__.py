"""Execution of schedules with torch.distributed's point-to-point operations.

A schedule lists the sends, receives and additions of one collective; a plan holds schedules.
"""
