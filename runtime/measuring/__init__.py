"""Measurements on running ranks: the benchmark table."""
