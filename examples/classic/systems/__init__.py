"""The classic systems, those alike in one file."""
