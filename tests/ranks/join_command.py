"""A command that joins the hosts of the ranks that it is started as, and prints the topology."""

import patience

from topoplan.runtime.ranks.places import join_ranks

if __name__ == "__main__":
    print(join_ranks(patience.seconds(40)).dumps())
