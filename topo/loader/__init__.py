"""Loading of a topology from an argument of a command or of `load`."""
