"""Numerical methods that know nothing of GPUs: linear programs, exact rates, arborescences, matroid
union.
"""
