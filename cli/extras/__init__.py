"""What commands offer beyond the core, an extra in each folder; see extras.py at the root."""
