"""Recover from a lost link: finish the calls of a job over the links that are left."""
