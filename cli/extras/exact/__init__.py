"""Exact synthesis on the command line: `topo-synth --pareto` and `--instance`."""
