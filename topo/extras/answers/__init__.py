"""Symptoms of runs that hang, fail or are slow, and what public threads found as their causes."""
