"""Plan all_to_all_single with parts of different sizes, for sizes announced in advance."""
