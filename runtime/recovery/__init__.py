"""Go on after a lost link: notice it, agree on what is left, finish the call without it."""
