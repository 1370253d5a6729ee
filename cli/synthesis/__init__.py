"""The parts of topo-synth: its options, its tables for people, its JSON for programs."""
