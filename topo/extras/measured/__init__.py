"""Measurements between GPUs, attributed to the links on their routes."""
