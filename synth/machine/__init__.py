"""The machine as searches see it: arrays of links, cheapest routes, symmetries, boxes, pairs."""
