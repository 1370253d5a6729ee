"""Lower bounds on all rank orders: their certificates, their proofs, and the search for them."""
