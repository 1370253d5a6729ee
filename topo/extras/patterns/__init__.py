"""What transfers get that run at once, beside what one of them gets alone: patterns of flows."""
