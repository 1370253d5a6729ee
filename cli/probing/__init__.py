"""Parts of topo-probe."""
