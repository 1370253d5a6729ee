"""Upper bounds on what a collective can reach on a topology, with the certificates that prove them,
and their checker.

`any_way.py` is for any use of the links, `one_way.py` for one way a pair of GPUs, `in_network.py`
where switches add that could; `cuts.py` finds cuts. `certificate.py` checks, and knows nothing of
how a certificate was found.
"""
