"""Is a plan worth it: beside the stock library, by a model, with what to use."""
