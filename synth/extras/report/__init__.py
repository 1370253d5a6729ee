"""Report on a machine or a plan in one HTML page: `gather` collects the contents, `page` writes."""

# Seconds for all searches together; the page of a common machine then takes less than ten.
USUAL_LIMIT_S = 6.0
