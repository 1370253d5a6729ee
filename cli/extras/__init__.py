"""Commands beyond the core; see extras.py at the root."""
