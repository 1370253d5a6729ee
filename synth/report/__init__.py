"""The report on a machine or a plan as one HTML page: `gather` finds what is to be said, `page` writes it."""
