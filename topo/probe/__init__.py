"""Facts about the machine at hand, each with its source."""
