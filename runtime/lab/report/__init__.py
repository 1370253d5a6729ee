"""The report: results by system and network, findings computed from them, and the page."""
