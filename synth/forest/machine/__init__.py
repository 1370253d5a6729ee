"""The machine as tree search sees it: pairs of GPUs with prices, cheapest routes, symmetries,
boxes.
"""
