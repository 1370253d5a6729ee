"""`topo-synth --format astra-sim`: a schedule as Chakra traces for ASTRA-sim."""
