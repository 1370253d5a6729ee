"""Explain what limits a plan: the bottleneck, the links to improve first, what helpers gain."""
