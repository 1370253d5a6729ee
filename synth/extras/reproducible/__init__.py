"""Plans that add up every element in one bracketing of ranks, so that results are bitwise equal."""
