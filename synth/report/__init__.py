"""Write the report on a machine or a plan as one HTML page: `gather` collects, `page` writes."""

# Seconds for all searches together; a page of a usual machine then takes less than ten.
USUAL_LIMIT_S = 6.0
