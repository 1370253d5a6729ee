"""Throughput-optimal trees: what they are packed into, how they are found, and how they become
schedules.
"""
