"""Readers and writers of topology files, told apart by content."""
