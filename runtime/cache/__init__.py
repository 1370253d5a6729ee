"""What a start caches in a folder for the next one, and where that folder is."""
