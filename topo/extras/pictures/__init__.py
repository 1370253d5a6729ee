"""A topology as SVG: where devices stand, how links run, and what is drawn of a large machine."""
