"""Judging of existing runs: measurements, rings and trees compared with their machine's bound."""
