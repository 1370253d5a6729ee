"""Topologies derived from others: joined, split, degraded, given rates, or with switches merged."""
