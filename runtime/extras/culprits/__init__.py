"""Who is to blame when a call or a set-up cannot go on, by the reports that ranks exchange."""
