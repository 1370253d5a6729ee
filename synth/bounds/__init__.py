"""Upper bounds on the rate of a collective on a topology, their certificates, and the checker.

A certificate is what proves a bound: a cut, or prices on links. `multipath.py` is for any use of
the links, `single_path.py` for one route per pair of GPUs, `in_network.py` for machines on which
every switch that can add does; `cuts.py` finds cuts. `certificate.py` checks the certificates, and
depends on none of the searches.
"""
