"""The classic systems, one file each."""
