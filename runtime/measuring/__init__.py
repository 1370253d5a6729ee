"""Measurements on running ranks: links, host costs, and the benchmark table."""
