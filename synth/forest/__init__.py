"""Throughput-optimal trees: how candidates are found, at any scale, and made into schedules.

A forest is a set of trees, each with a share of the buffer.
"""
