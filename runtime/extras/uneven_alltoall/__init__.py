"""all_to_all_single with parts of different sizes, by plans for sizes that were announced."""
