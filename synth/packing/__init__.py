"""Trees and paths packed into links by column generation, and their shares rounded exactly.

A packing divides a collective's data among trees or paths so that no link carries more than it
must, by a linear program with a column for each.
"""
