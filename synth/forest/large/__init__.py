"""Paths and trees for machines that are too large, or too uneven, for column generation."""
