"""What carries out calls: each runner in a module of its own, behind one contract."""
