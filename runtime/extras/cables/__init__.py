"""Find the cables between hosts by hand-shakes over their ports, and send over them."""
