"""Runners, which carry out calls of collectives: a module for each, behind one contract."""
