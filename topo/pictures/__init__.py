"""Presentations of a topology for people: tables, trees, SVG and Graphviz dot."""
