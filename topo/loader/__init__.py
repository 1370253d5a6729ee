"""From an argument of a command, or of `load`, to a topology."""
