"""The machine as tree search sees it: priced pairs of GPUs, cheapest routes, symmetries, boxes."""
