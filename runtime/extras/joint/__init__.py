"""Joint plans at run time: all groups' calls at once, and the race of a joint plan as a whole."""
