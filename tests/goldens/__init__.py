"""What redesigns must not change, recorded: see README.md."""
