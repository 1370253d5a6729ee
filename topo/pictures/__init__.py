"""A topology as people look at it: tables, trees, SVG and Graphviz dot."""
