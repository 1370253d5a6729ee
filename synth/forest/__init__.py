"""Throughput-optimal trees: how they are packed into links, found, and made into schedules."""
