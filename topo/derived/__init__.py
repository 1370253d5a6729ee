"""Topologies made from others: hosts joined, links lost or slower, NVSwitches merged."""
