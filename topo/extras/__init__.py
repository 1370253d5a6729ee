"""What is read of machines beyond the core, an extra in each folder; see extras.py at the root."""
