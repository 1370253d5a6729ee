"""XML that people paste: in fences, after prompts, quoted, numbered, escaped, and cut off."""

from __future__ import annotations

import html

import pytest
from needs import has_extra

from topoplan.topo.errors import InputError
from topoplan.topo.extras.pasted.xml import find_xml
from topoplan.topo.formats.detect import read_topology_text

NCCL = """\
<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="AuthenticAMD" familyid="191" modelid="2">
    <pci busid="0000:01:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="120" rank="0" gdr="1"/>
    </pci>
    <pci busid="0000:11:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="120" rank="1" gdr="1"/>
    </pci>
  </cpu>
</system>
"""
HWLOC = """\
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x3" nodeset="0x1" gp_index="1">
    <object type="NUMANode" os_index="0" cpuset="0x3" nodeset="0x1" gp_index="2"/>
    <object type="Bridge" gp_index="3" bridge_type="0-1" depth="0" bridge_pci="0000:[00-01]">
      <object type="PCIDev" gp_index="4" pci_busid="0000:01:00.0"
              pci_type="0302 [10de:20b0] [10de:144e] a1" pci_link_speed="31.507692"/>
      <object type="PCIDev" gp_index="5" pci_busid="0000:02:00.0"
              pci_type="0302 [10de:20b0] [10de:144e] a1" pci_link_speed="31.507692"/>
    </object>
  </object>
</topology>
"""


def number(text: str) -> str:
    return "".join(f"{i:6}\t{line}" for i, line in enumerate(text.splitlines(True), 1))


AROUND = {
    "fence": "```xml\n{}```\n",
    "declared": '~~~\n<?xml version="1.0" encoding="UTF-8"?>\n{}~~~\nThanks!\n',
    "prompt": "root@node:~$ cat topo.xml\n{}root@node:~$ ",
    "prose": "We dumped it (the <system> or <topology> below), as asked.\n\n{}\nIt is slow. Why?\n",
    "after": "{}root@node:~$\n",
    "page": "<details><summary>topo</summary>\n<pre><code>{}</code></pre></details>\n",
}


@pytest.mark.parametrize("file", [NCCL, *([HWLOC] if has_extra("hwloc") else [])])
@pytest.mark.parametrize("around", AROUND)
def test_text_around_xml_does_not_matter(file: str, around: str) -> None:
    machine = read_topology_text(AROUND[around].format(file), "file")
    plain = read_topology_text(file, "file")
    assert machine.ranks == plain.ranks == ("gpu0", "gpu1") and machine.links == plain.links


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"> {line}" for line in NCCL.splitlines(True)),
        "".join(f"node1:17:42 [0] {line}" for line in NCCL.splitlines(True)),
        number("$ cat topo.xml\n" + NCCL),
        "look:\n" + html.escape(NCCL),
        "look:\n" + NCCL.replace('"', "&quot;"),
        "\x1b[1mtopology\x1b[0m\n" + NCCL.replace("<cpu", "\x1b[33m<cpu\x1b[0m"),
        "topology\n" + NCCL.replace('version="1"', "version=\u201c1\u201d"),
    ],
)
def test_what_stands_before_each_line_is_removed(text: str) -> None:
    machine = read_topology_text(text, "file")
    assert [str(machine.by_id[gpu].bus_id) for gpu in machine.ranks] == [
        "0000:01:00.0",
        "0000:11:00.0",
    ]


def test_errors_name_the_lines_of_the_text_as_given() -> None:
    broken = NCCL.replace('dev="1"', 'dev="x"')
    with pytest.raises(InputError, match="line 9: <gpu>"):
        read_topology_text("Hello\n```xml\n" + broken + "```\n", "file")
    cut = "Hello\n```xml\n" + NCCL[:-40] + "\n```\nbye\n"
    with pytest.raises(InputError, match="is the file cut off"):
        read_topology_text(cut, "file")


def test_a_matrix_beside_a_cut_file_is_read() -> None:
    matrix = "\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n"
    machine = read_topology_text("```\n" + NCCL[:-40] + "\n```\n" + matrix, "file")
    assert len(machine.ranks) == 2 and "nvidia-smi" in (machine.source or "")


def test_elements_in_sentences_are_no_files() -> None:
    assert find_xml("the <system> element, and <topology>", "system", "topology") is None
    assert find_xml("no markup at all", "system") is None
    with pytest.raises(InputError, match="not recognized"):
        read_topology_text("the <system> element is missing", "file")
