"""The participating processes: launch, hosts, groups, the store, stock collectives, faults."""
