"""Joint plans on the command line: `topo-synth --groups`, and topo-run of what it wrote."""
