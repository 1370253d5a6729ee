"""Plans and races, cached in a folder for later starts."""
