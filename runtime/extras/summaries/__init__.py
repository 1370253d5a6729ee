"""What a run used, and how much it saved: counts of calls, and summaries made of them."""
