"""Golden files: every input in tests/golden/ reads into the JSON beside it.

TOPOPLAN_RENEW_GOLDEN=1 writes the JSON anew; read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from needs import has_extra

from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.graph import Topology

GOLDEN = Path(__file__).parents[2] / "golden"
# Extras that read what is in a folder.
READERS = {"amd_smi": "amd", "hwloc_xml": "hwloc", "pasted": "pasted"}
INPUTS = sorted(
    path
    for path in GOLDEN.glob("*/*")
    if path.suffix != ".json"
    and (path.parent.name not in READERS or has_extra(READERS[path.parent.name]))
)


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_input_reads_into_the_json_beside_it(path: Path) -> None:
    # bytes, since some inputs have line ends of other systems
    topology = read_topology_text(path.read_bytes().decode(), path.name)
    expected = path.with_suffix(".json")
    if os.environ.get("TOPOPLAN_RENEW_GOLDEN"):
        expected.write_text(topology.dumps())
    assert topology.dumps() == expected.read_text()
    assert Topology.loads(expected.read_text(), expected.name) == topology
