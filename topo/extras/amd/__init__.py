"""Read the tables that AMD's tools rocm-smi and amd-smi print, as text and as JSON."""
