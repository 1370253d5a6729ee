"""Throughput-optimal trees: how they are packed into links, searched for, and made into
schedules.
"""
