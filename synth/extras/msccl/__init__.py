"""MSCCL's algorithm files (XML): read, replayed, and turned into schedules."""
