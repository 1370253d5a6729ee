"""Stock libraries on hosts that cables join: rings, settings and files for them, what to cable."""
