"""Tables of AMD's tools: rocm-smi and amd-smi, as texts and as JSON."""
