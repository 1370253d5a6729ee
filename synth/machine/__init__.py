"""The machine as searches see it: arrays of links, cheapest routes, symmetries, boxes, pairs.

A box is a group of GPUs joined by slower links to others, such as a host.
"""
