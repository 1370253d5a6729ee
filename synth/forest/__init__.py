"""Throughput-optimal trees: how candidates are found, at any scale, and made into schedules."""
