"""Trees and paths packed into links by column generation, and their shares rounded exactly."""
