"""The report on a machine or a plan as one HTML page: `gather` collects, `page` writes."""

# Seconds for all searches together; the page of a common machine then takes less than ten.
USUAL_LIMIT_S = 6.0
