"""Readers and writers of topology files; the content of a file decides its format."""
