"""Collectives, schedules, their verification, bounds, costs and plans.

This package decides which data is sent in which order. It does not import torch.
"""
