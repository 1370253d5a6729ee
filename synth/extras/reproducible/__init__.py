"""Plans that add every element in one order (bracketing), so that results are bitwise equal."""
