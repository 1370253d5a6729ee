"""Find which rank or link is at fault when a call or a set-up fails, from reports of all ranks."""
