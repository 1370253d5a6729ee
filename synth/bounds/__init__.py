"""Upper bounds on what a collective can reach on a topology, with the certificates that prove them,
and their checker.

`multipath.py` is for any use of the links, `single_path.py` for one route a pair of GPUs,
`in_network.py` where switches add that could; `cuts.py` finds cuts. `certificate.py` checks, and
depends on none of the searches.
"""
