"""Register the files of schedulers and clouds among the formats that topo-probe reads."""

from ...formats.format import PlaceFormats
from . import CLUSTER_FORMATS, read_box, read_cluster

CLUSTERS = PlaceFormats(lambda: [format.name for format in CLUSTER_FORMATS], read_box, read_cluster)
