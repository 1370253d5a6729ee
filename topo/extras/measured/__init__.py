"""Attribute measurements between GPUs to the links on their routes, and correct the topology."""
