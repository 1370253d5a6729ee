"""What is known of each GPU in detail, by its board and by facts; for several other extras."""
