"""A machine has other rates by NCCL's XML than by its datasheet: which of them a rate is, is said
beside it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from called import call_command

from topoplan.topo.formats import nccl_xml
from topoplan.topo.pictures import table
from topoplan.topo.pictures.cables import describe_rates
from topoplan.topo.presets import preset

GPU = """<pci busid="0000:{i}0:00.0" class="0x030200"><gpu dev="{i}" rank="{i}" {facts}>
<{kind} target="0000:{to}0:00.0" count="{count}" tclass="0x030200"/></gpu></pci>"""


def write_xml(kind: str, facts: str, count: int) -> str:
    gpus = "".join(GPU.format(i=i, to=1 - i, kind=kind, facts=facts, count=count) for i in range(2))
    return f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>'


@pytest.mark.parametrize(
    ("kind", "facts", "says"),
    [
        ("nvlink", 'sm="90"', "rates: NCCL's, 20.6 GB/s a link; the datasheet says 25"),
        ("nvlink", 'sm="80"', "rates: NCCL's, 20 GB/s a link; the datasheet says 25"),
        ("nvlink", 'sm="100"', "rates: NCCL's, 40.1 GB/s a link; the datasheet says 50"),
        ("nvlink", "", "rates: NCCL's, 20 GB/s a link"),
        ("xgmi", 'gcn="gfx942"', "rates: RCCL's, 48 GB/s a link; the datasheet says 64"),
        ("xgmi", 'gcn="906"', "rates: RCCL's, 24 GB/s a link"),
    ],
)
def test_rates_of_a_library_are_named_beside_the_datasheets(
    kind: str, facts: str, says: str
) -> None:
    machine = nccl_xml.read(write_xml(kind, facts, 4), "box.xml")
    assert describe_rates(machine) == [says]
    assert says in table.write(machine)


def test_datasheets_need_no_word_and_every_source_is_listed() -> None:
    assert describe_rates(preset("dgx-h100")) == []
    assert "DGX H100 datasheet" in next(
        x for x in table.write(preset("dgx-h100")).splitlines() if x.startswith("  NVLink ")
    )


def test_the_commands_say_it(tmp_path: Path) -> None:
    path = tmp_path / "box.xml"
    path.write_text(write_xml("nvlink", 'sm="90"', 18))
    says = "rates: NCCL's, 20.6 GB/s a link; the datasheet says 25"
    asked = ("--collective", "allreduce", "--topology", str(path))
    assert says in call_command("synth", *asked, "--bound-only").stdout
    assert says in call_command("synth", *asked, "--strategy", "direct").stdout
    out = json.loads(call_command("synth", *asked, "--bound-only", "--json").stdout)
    assert out["topology"]["rates"] == [says]
    links = json.loads(call_command("probe", str(path), "--json").stdout)["links"]
    assert {x["source"] for x in links if x["kind"] == "nvlink"} == {
        "18 x nvlink, as NCCL counts it"
    }
