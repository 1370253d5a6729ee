"""Placement of ranks: the GPU of each rank that minimizes a job's communication time, with a
bound.
"""
