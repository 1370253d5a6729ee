"""Curves of plans against size as SVG, and the elements that all pictures share."""
