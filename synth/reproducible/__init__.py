"""Plans in which every element is added up in one bracketing of ranks, so that its bits depend on
the contributions alone.
"""
