"""Host costs, fitted to measured calls of a plan's schedules (topo-run --calibrate)."""
