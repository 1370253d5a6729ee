"""Helpers: ranks outside a group that forward bytes for its calls; how they learn of each call."""
