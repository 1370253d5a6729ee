"""Links measured by sending: topo-probe --measure, and the rates of flows that come together."""
