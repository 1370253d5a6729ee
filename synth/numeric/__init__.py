"""Numerical methods that know nothing of GPUs.

They are linear programs, exact rates, arborescences, circuits and matroid union.
"""
