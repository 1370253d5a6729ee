"""The report on a machine or a plan as one HTML page: `gather` finds what is to be said, `page`
writes it.
"""

# Seconds for all searches together: with all else, a page of a usual machine then takes less than
# ten.
USUAL_LIMIT_S = 6.0
