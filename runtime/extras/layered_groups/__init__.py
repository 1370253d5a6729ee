"""Process groups of the backend whose calls on CPU tensors go through layers."""
