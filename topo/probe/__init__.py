"""Probe the machine at hand: gather facts, each with its source, and build its topology."""
