"""NCCL's graph files: read as NCCL reads them, every fault one line with its place."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan.synth.extras.nccl_files.graph_file import read_graph_file
from topoplan.topo.errors import InputError

FILE = """<graphs version="1">
  <!-- by hand, with <gpu dev="9"/> = in it -->
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="12.5" speedinter="12" typeintra="SYS"\
 typeinter="PIX" samechannels="0">
    <channel>
      <gpu dev="0"/>
      <gpu dev="0xa" />
      <gpu dev="2"/>
    </channel>
    <channel>
      <net dev="0x100000000000001"/>
      <gpu dev="0x2" rank="5"/>
      <gpu dev="a"/>
      <gpu dev="0"/>
      <net dev="0"/>
    </channel>
  </graph>
</graphs>
"""


def test_reads_what_nccl_reads() -> None:
    file = read_graph_file(FILE, "graph.xml")
    (graph,) = file.graphs
    assert (graph.id, graph.pattern, graph.nchannels, graph.crossnic, graph.samechannels) == (
        0,
        4,
        2,
        0,
        0,
    )
    assert [graph.speedintra, graph.speedinter, graph.latencyinter] == [
        Fraction(25, 2),
        Fraction(12),
        Fraction(0),
    ]
    assert (graph.typeintra, graph.typeinter) == ("SYS", "PIX")
    assert graph.channels == ((0, 10, 2), (2, 10, 0))
    assert graph.nets == ((), (2**56 + 1, 0))
    assert graph.ranks == ((None, None, None), (5, None, None))
    assert file.find(0) is graph and file.find(1) is None
    assert len(file.notes) == 1 and "have ranks" in file.notes[0]
    assert (
        "as meant before NCCL 2.21; later ones read 16"
        in read_graph_file(FILE.replace('"2"', '"10"'), "f").notes[0]
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (FILE, " ", "graph.xml: the file is empty"),
        (FILE[-100:], "", "incomplete or malformed XML"),
        (FILE, "<system version='1'/>", "line 1: <system> is not NCCL's graph file"),
        (
            '<graphs version="1">',
            '<?xml version="1.0"?>\n<graphs version="1">',
            "line 1: begins with <?...?>",
        ),
        ('version="1"', 'version="2"', "line 1: <graphs> version='2': NCCL reads version 1 only"),
        ("  <!--", "\t<!--", "line 2: '\\t' between elements"),
        ("<channel>\n      <net", "<channel>and\n      <net", "line 9: 'and' between elements"),
        (
            'dev="0xa"',
            'dev = "0xa"',
            "line 6: '<gpu dev = \"0xa\" />' is not written as NCCL reads tags",
        ),
        ('dev="0xa"', 'dev="&#48;"', "line 6"),
        ('dev="0xa"', 'dev="gpu1"', "line 6: <gpu> dev='gpu1': expected a number such as 0x3 or 3"),
        ('dev="0xa"', 'dev="-1"', "line 6: <gpu> dev='-1'"),
        ('dev="0xa"', 'rank="1"', "line 6: <gpu> has no dev"),
        (
            'nchannels="2"',
            'nchannels="two"',
            "line 3: <graph> nchannels='two': expected a whole number",
        ),
        (' nchannels="2"', "", "line 3: <graph> has no nchannels, which NCCL demands"),
        (' typeintra="SYS"', "", "line 3: <graph> has no typeintra"),
        (
            'speedintra="12.5"',
            'speedintra="nan"',
            "line 3: <graph> speedintra='nan': expected a number",
        ),
        ('speedintra="12.5"', 'speedintra="-1"', "line 3: <graph> speedintra='-1'"),
        ('id="0"', f'id="{10**12}"', "line 3: <graph> id="),
        ('id="0"', f'id="0" name="{"x" * 300}"', "line 3"),
        (FILE, '<graphs version="1"/>', "line 1: <graphs> has no <graph>"),
        (
            "</graph>",
            "</graph>" + FILE[FILE.index("<graph id") : FILE.index("</graph>") + 8],
            "a second graph 0 (ring), after line 3",
        ),
        (FILE, "<!DOCTYPE a [<!ENTITY b 'c'>]>" + FILE, "declares a DTD"),
    ],
)
def test_faults_are_one_line_with_the_place(before: str, after: str, words: str) -> None:
    assert before in FILE
    with pytest.raises(InputError) as error:
        read_graph_file(FILE.replace(before, after, 1), "graph.xml")
    assert (
        words in str(error.value)
        and str(error.value).startswith("graph.xml")
        and "\n" not in str(error.value)
    )


@given(st.integers(0, len(FILE)), st.integers(0, 40), st.text('<>"=/ 0ax\t\n&-!?', max_size=8))
def test_damaged_files_are_read_or_refused_in_one_line(start: int, cut: int, instead: str) -> None:
    try:
        file = read_graph_file(FILE[:start] + instead + FILE[start + cut :], "graph.xml")
    except InputError as error:
        assert str(error).startswith("graph.xml") and "\n" not in str(error)
    else:
        assert file.graphs


@pytest.mark.parametrize("name", ["dgx1", "oci-h100", "pcie-3gpu"])
def test_reads_what_nccl_found(name: str, more_inputs: Callable[[str], Path]) -> None:
    path = more_inputs(f"nccl_graphs/{name}.graph.xml")
    file = read_graph_file(path.read_text(), str(path))
    assert [graph.id for graph in file.graphs] == [0, 1, 4, 2, 3]
    for graph in file.graphs[:2]:
        assert graph.nchannels == len(graph.channels)
        assert all(sorted(channel) == list(range(len(channel))) for channel in graph.channels)
