"""The parts of topo-run: its options, and how its rows are written."""
