"""Measure links by sending over them: topo-probe --measure, and the rates of simultaneous flows."""
