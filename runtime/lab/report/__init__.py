"""The report on a lab run: its rows, the findings, and the page."""
