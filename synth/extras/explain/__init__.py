"""What limits a plan: the bottleneck, the links to improve first, and what helpers are worth."""
