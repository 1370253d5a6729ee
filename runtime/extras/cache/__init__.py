"""Plans and races that are kept in a folder for later starts."""
