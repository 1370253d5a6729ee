"""Register the tables of AMD's tools among the formats that topo-probe reads."""

from ...formats.format import Format
from . import json_tables, smi

JSON = Format(
    "JSON of amd-smi topology or rocm-smi --showtopo",
    json_tables.looks_like,
    smi.read,
    before="json",
    find_inside=json_tables.find_json,
    like=("smi",),
)
TEXT = Format(
    "text of rocm-smi --showtopo or amd-smi topology",
    smi.looks_like,
    smi.read,
    before="smi",
    in_json=True,
    like=("smi",),
)
