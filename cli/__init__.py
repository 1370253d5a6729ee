"""The commands: parse, call, print; nothing is decided here."""
