"""Numerical methods that know nothing of GPUs.

They are linear programs, column generation, arborescences, circuits and matroid union.
"""
