"""What runs today, judged: measurements, rings and trees held against the certified bound of their
machine.
"""
