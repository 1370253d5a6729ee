"""Process groups whose calls on CPU tensors go through layers, such as recovery from faults."""
