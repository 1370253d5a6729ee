"""Plans for demands: pieces of data, the ranks that hold each one, and the ranks that need it."""
