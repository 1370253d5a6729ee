"""Files of clusters among the formats that are read."""

from ...formats.format import PlaceFormats
from . import CLUSTER_FORMATS, read_box, read_cluster

CLUSTERS = PlaceFormats(lambda: [format.name for format in CLUSTER_FORMATS], read_box, read_cluster)
