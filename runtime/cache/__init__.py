"""Caches from one start for the next: races, and the folder of races and plans."""
