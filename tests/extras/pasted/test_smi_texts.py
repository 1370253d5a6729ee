"""Matrices of nvidia-smi in the texts that people paste, and what these say around them."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction

import pytest
from small_matrices import alike, facts, matrix, notes, read
from verdicts import judge_pairs, list_findings

from topoplan.synth.bounds.assumptions import list_assumptions
from topoplan.synth.bounds.single_path import find_bounds
from topoplan.synth.ir.collective import Collective
from topoplan.topo.derived.stated import state_board, state_rates
from topoplan.topo.errors import InputError
from topoplan.topo.facts import keys as fact_keys
from topoplan.topo.facts import load_facts
from topoplan.topo.formats import smi
from topoplan.topo.graph import Topology
from topoplan.topo.routes import Router


@pytest.mark.parametrize(
    ("said", "GBps", "source"),
    [
        ("* PCIe link: PCIe Gen5 x8 per GPU", 24, "Gen5 x8, as line 2 says"),
        ("| PCIe | Gen5 x8 per GPU |", 24, "Gen5 x8, as line 2 says"),
        ("PCIe: 5.0 \u00d78 for both cards", 24, "Gen5 x8, as line 2 says"),
        ("Both GPUs run at x8", 24, "Gen5 x8, as line 2 says"),
        ("8 PCIe lanes per GPU", 24, "Gen5 x8, as line 2 says"),
        ("the cards run at PCIe Gen4", 24, "Gen4 x16, as line 2 says"),
        ("GPU link: 16 GT/s x8", 12, "Gen4 x8, as line 2 says"),
        ("GPUs: x2 @ PCIe 5.0 x8", 24, "Gen5 x8, as line 2 says"),
        ("Each GPU is connected with PCIe Gen5 x8.", 24, "Gen5 x8, as line 2 says"),
        ("link width: 8x per GPU", 24, "Gen5 x8, as line 2 says"),
        ("PCIe Gen5 x8 per GPU, not x16", 24, "Gen5 x8, as line 2 says"),
        ("GPUs run at PCIe 5.0 x8 instead of PCIe 5.0 x16", 24, "Gen5 x8, as line 2 says"),
        ("the GPUs are not running at x8", 48, ""),
        ("GPU0: PCIe 5.0 x8, GPU1: PCIe 5.0 x4", 24, "Gen5 x8, as line 2 says"),
        ("GPUs: x4 PCIe 4.0 on risers", 6, "Gen4 x4, as line 2 says"),
        ("PCIe Gen5 x16 slots, GPUs running at x8", 24, "Gen5 x8, as line 2 says"),
        (
            "GPUs in PCIe 6.0 x16 slots",
            48,
            "Gen5 x16, as the board has of the Gen6 x16 that line 2 says",
        ),  # the board has no more
        ("Storage: NVMe PCIe 4.0 x4", 48, ""),
        ("Board: 7x PCIe 5.0 x8 slots", 48, ""),
        ("NICs: PCIe 5.0 x8", 48, ""),
        ("the GPUs would run at x8", 48, ""),
        ("2x RTX PRO 6000 Blackwell PCIe", 48, ""),
    ],
)
def test_what_the_text_says_of_the_gpus_pcie_counts(said: str, GBps: int, source: str) -> None:
    machine = read(f"2x RTX PRO 6000\n{said}\n\n{alike(2, 'PHB', '0-13 0;0-13 0', 'CPU Affinity')}")
    up = next(link for link in machine.links if link.src == "gpu0")
    assert up.bandwidth_GBps == GBps
    assert str(up.source).startswith(source or "assumed: Gen5 x16, by the GPUs")


def test_single_gpus_may_have_other_slots_and_lines_that_disagree_are_not_followed() -> None:
    text = alike(2, "PHB", "0-13 0;0-13 0", "CPU Affinity|NUMA Affinity")
    machine = read(f"2x RTX 3090\nGPU0: PCIe 4.0 x16\nGPU1: PCIe 4.0 x4\n{text}")
    ups = [next(x for x in machine.links if x.src == f"gpu{i}") for i in range(2)]
    assert [up.bandwidth_GBps for up in ups] == [24, 6]
    hosts = read(f"2x RTX 3090, GPUs at PCIe 4.0 x8\n{text}\nthe other host:\n{text}")
    assert {x.bandwidth_GBps for x in hosts.links if x.kind == "pcie"} == {12}
    machine = read(f"GPU0 RTX 3090 PCIe 4.0 x16, GPU1 RTX 3090 PCIe 4.0 x4\n{text}")
    ups = [next(x for x in machine.links if x.src == f"gpu{i}") for i in range(2)]
    assert [up.bandwidth_GBps for up in ups] == [24, 6]
    machine = read(f"2x RTX 3090\nGPUs: PCIe 4.0 x16\nthe cards run at PCIe 4.0 x8\n{text}")
    assert "the text says Gen4 x16 (line 2) and Gen4 x8 (line 3) of the GPUs' PCIe" in notes(
        machine
    )
    assert next(x for x in machine.links if x.src == "gpu0").bandwidth_GBps == 24


@pytest.mark.parametrize(
    ("said", "noted", "unnoted", "between"),
    [
        ("", "PCIe is taken as Gen3 x16", "PCIe of", 19.2),
        ("Every card runs at PCIe Gen5 x16.", "", "PCIe is taken", 40),
        ("all GPUs: PCIe 4.0 x8", "", "PCIe is taken", 24),
        ("Every card runs at x8.", "PCIe is taken as Gen3, as NCCL", "Gen3 x16", 19.2),
        ("GPU0: PCIe 5.0 x16", "PCIe of gpu1, gpu2, gpu3 is taken as", "PCIe is taken", 19.2),
    ],
)
def test_no_note_contradicts_the_pcie_that_the_text_states(
    said: str, noted: str, unnoted: str, between: float
) -> None:
    labels = "X PIX SYS SYS/PIX X SYS SYS/SYS SYS X PIX/SYS SYS PIX X"
    rows = matrix(labels, "0-3 0;0-3 0;4-7 1;4-7 1", "CPU Affinity|NUMA Affinity")
    machine = read(f"{said}\n{rows}")
    assert noted in notes(machine)
    assert unnoted not in notes(machine)
    assert {float(x.bandwidth_GBps) for x in machine.links if x.kind == "smp"} == {between}


@pytest.mark.parametrize(
    ("said", "condition", "is_guess"),
    [
        ("2x RTX PRO 6000\nGPUs: PCIe Gen5 x16", "PCIe links have 48 GB/s", False),
        ("the cards run at PCIe 4.0 x8", "PCIe links have 12 GB/s", False),
        ("2x RTX PRO 6000\nBoth GPUs run at x8", "PCIe links have 24 GB/s", False),
        ("Both GPUs run at x8", "PCIe links have 6 GB/s", True),  # of a generation that is assumed
    ],
)
def test_a_stated_generation_and_width_are_no_rate(
    said: str, condition: str, is_guess: bool
) -> None:
    machine = read(f"{said}\n{alike(2, 'PHB', '0-13 0;0-13 0', 'CPU Affinity')}")
    same = Topology.loads(machine.dumps())
    assert same == machine
    bound = find_bounds(Collective("allreduce", 2), Router(same)).single_path
    assert [(x.what, x.is_guess) for x in list_assumptions(bound, same)] == [(condition, is_guess)]
    (rated,) = state_rates([machine], {"pcie": Fraction(55)})  # figures count more
    assert {x.bandwidth_GBps for x in rated.links} == {55}


def test_a_board_that_is_named_later_does_not_widen_a_stated_slot() -> None:
    machine = read(f"GPUs: PCIe 4.0 x8\n{alike(2, 'PHB', '0-13 0;0-13 0', 'CPU Affinity')}")
    with pytest.raises(InputError, match="no rate that is only assumed"):
        state_board([machine], "RTX 5090")
    with pytest.raises(InputError, match="no pcie link has a rate that is only assumed"):
        state_rates([machine], {"pcie": Fraction(48)}, "assumed: Gen5 x16, by the GPU: RTX 5090")


LSPCI = """
03:00.0 VGA compatible controller: NVIDIA Corporation GA102 [GeForce RTX 3090] (rev a1)
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM L0s L1
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)
04:00.0 Non-Volatile memory controller: a drive
\t\tLnkSta:\tSpeed 16GT/s (ok), Width x2 (ok)
0b:00.0 VGA compatible controller: NVIDIA Corporation GA102 [GeForce RTX 3090] (rev a1)
\t\tLnkSta:\tSpeed 8GT/s (downgraded), Width x4 (downgraded)"""


QUERY = "nvidia-smi --query-gpu={0} --format=csv\n{0}\n"


NAMED = "assumed: Gen4 x16, by the GPUs"


@pytest.mark.parametrize(
    ("said", "sources"),
    [
        (
            "- **GPU 0:** RTX 3090\n  - **PCIe:** x2 lanes negotiated (GPU max x16, Gen up to 3) | "
            "the slot is narrow and affects all-reduce\n- **GPU 1:** RTX 3090",
            ["Gen3 x2, as line 3 says", NAMED],
        ),
        ("GPU0: x8 (electrical)\nGPU1: negotiated at x4 (max x16)", ["Gen4 x8", "Gen4 x4"]),
        ("- GPU 0\n  - PCIe Gen3 x16\n- GPU 1\n  - PCIe Gen3 x4", ["Gen3 x16", "Gen3 x4"]),
        ("### GPU 0\n\n- Link: x4 of x16 lanes\n\n### GPU 1\n", ["Gen4 x4", NAMED]),
        ("GPU 0: a\nPCIe: x4 negotiated\nGPU 1: b\n", ["Gen4 x4, as line 3 says", NAMED]),
        ("GPU 0: a\nPCIe: x4 negotiated\nGPU 1: b\nPCIe: x8 negotiated", ["Gen4 x4", "Gen4 x8"]),
        ("GPU 0: a\nGPU 1: b\nPCIe: x8 negotiated", ["Gen4 x8", "Gen4 x8"]),
        ("GPU 0 (a):\n    Bus: 0\n    PCIe: Gen 3 x4 (max Gen 4 x16)", ["Gen3 x4", NAMED]),
        ("GPU1: PCIe Gen4 x16 @ x8", [NAMED, "Gen4 x8"]),
        ("- GPU 0: RTX 3090\n  - PCIe 3.0 x8 for both\n", ["Gen3 x8", "Gen3 x8"]),
        ("GPU0: LnkSta: Speed 8GT/s, Width x8", ["Gen3 x8", NAMED]),
        (LSPCI, ["Gen4 x8, as line 5 says", "Gen3 x4, as line 9 says"]),
        (
            QUERY.format("index,pcie.link.gen.current,pcie.link.width.current")
            + "1, 3, 4\n0, 1, 8",
            ["Gen4 x8, as line 5 says", "Gen3 x4, as line 4 says"],
        ),
        (QUERY.format("name,pcie.link.width.current") + "a, 16\nb, 8", ["Gen4 x16", "Gen4 x8"]),
        (QUERY.format("index,pcie.link.width.max") + "0, 8\n1, 8", [NAMED, NAMED]),
        (
            "GPU 00000000:0B:00.0\n    Link Width\n        Max   : 16x\n        Current   : 4x\n"
            "GPU 00000000:03:00.0\n    Link Width\n        Max   : 16x\n        Current   : 8x",
            ["Gen4 x8, as line 9 says", "Gen4 x4, as line 5 says"],
        ),
        ("GPU1 pcie.link.width.current: 8", [NAMED, "Gen4 x8"]),
        ("PCIe: x8 negotiated (x16 capable)", ["Gen4 x8", "Gen4 x8"]),
        ("GPU1 supports x16 but trained at x8", [NAMED, "Gen4 x8"]),
        (
            "GPUs in PCIe 3.0 x16 slots\nGPU 1: x8 negotiated",
            ["Gen3 x16", "Gen3 x8, as lines 2 and"],
        ),
        ("GPU 0 could be negotiated at x8", [NAMED, NAMED]),
        ("The SSD negotiated x2", [NAMED, NAMED]),
    ],
)
def test_what_a_link_has_negotiated_counts(said: str, sources: list[str]) -> None:
    text = alike(2, "PHB", "0-13 0;0-13 0", "CPU Affinity|NUMA Affinity")
    machine = read(f"2x RTX 3090\n{said}\n\n{text}")
    ups = [next(x for x in machine.links if x.src == f"gpu{i}") for i in range(2)]
    for up, source in zip(ups, sources, strict=True):
        assert str(up.source).startswith(source)


@pytest.mark.parametrize(
    ("said", "note"),
    [
        ("LnkSta: Speed 16GT/s (ok), Width x4 (ok)", "line 2: a PCIe link of x4, but not of which"),
        ("\n".join(LSPCI.splitlines()[:4]), "0000:03:00.0: which GPUs they are is not known"),
        ("GPU0 negotiated x4\nGPU0 negotiated x8", "the text says x4 (line 2) and x8 (line 3)"),
    ],
)
def test_a_negotiated_width_of_an_unknown_gpu_is_noted(said: str, note: str) -> None:
    machine = read(f"2x RTX 3090\n{said}\n\n{alike(2, 'PHB', '0-13 0;0-13 0', 'CPU Affinity')}")
    assert note in notes(machine)
    assert {x.bandwidth_GBps for x in machine.links} == {24}


@pytest.mark.parametrize(
    "dressed",
    [
        lambda text: (
            f"Some prose about GPU0.\n\n```bash\n$ nvidia-smi topo -m\n{text}```\nGPU0 and GPU1 "
            "are near.\n"
        ),
        lambda text: "# nvidia-smi topo -m\n" + text.replace("\t", "    "),
        lambda text: text.replace("GPU0\tGPU1\tCPU", "\x1b[4mGPU0\tGPU1\tCPU").replace(
            "Affinity\n", "Affinity\x1b[0m\n"
        ),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: "\n".join([text.split("\n")[0], *reversed(text.split("\n")[1:])]),
        lambda text: (
            f"a@box:~$ nvidia-smi topo -m\n{text}\nLegend:\n\n  X = Self\n\na@box:~$ nvidia-smi "
            f"topo -m\n{text}"
        ),
        lambda text: text.replace("\tPIX", "\t    PIX").replace("X\t", "X \t"),
        lambda text: text.replace("GPU0\tGPU1\tGPU2", "[4mGPU0\tGPU1\tGPU2").replace(
            "Affinity\n", "Affinity[0m\n"
        ),
        lambda text: "".join(f"> > {line}\n" for line in text.splitlines()),
        lambda text: "<pre>" + text.replace("\t", "&#9;\u2003").replace("\n", "<br>\n") + "</pre>",
        lambda text: "".join(f"// {line}\n" for line in f"{text}\n".split("\n")),
        lambda text: "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines()),
        lambda text: "".join(
            f"2026-03-01T09:{second:02}Z web-1  | {line}\n"
            for second, line in enumerate(text.splitlines(), 5)
        ),
        lambda text: text.replace("CPU Affinity", "CPU_affinity"),
        lambda text: "\n".join(line.ljust(300) for line in text.split("\n")),
        lambda text: text.replace("\n", "<br>"),
        lambda text: text.replace("\n", "\r"),
        lambda text: "".join(f"│ {line} │\n" for line in text.splitlines()),
        lambda text: "".join(f"`{line}`\n" for line in text.splitlines()),
        lambda text: json.dumps(text.split("\n"), indent=1),
        lambda text: json.dumps({"host": "box", "topology": text}),
        lambda text: "".join(
            f"<tr><td>{line}</td></tr>".replace("\t", "</td><td>") for line in text.splitlines()
        ),
    ],
    ids=[
        "fence",
        "spaces",
        "underlined",
        "windows",
        "quoted",
        "spaced-out",
        "rows-reversed",
        "twice",
        "mixed",
        "underlined-without-escapes",
        "quoted-twice",
        "web-page",
        "commented",
        "launcher",
        "log",
        "spelled-otherwise",
        "wide",
        "broken-without-lines",
        "old-mac",
        "drawn",
        "code",
        "list",
        "string",
        "table-of-a-page",
    ],
)
def test_a_matrix_is_found_however_it_is_dressed(dressed: Callable[[str], str]) -> None:
    text = matrix(
        "X PIX SYS/PIX X SYS/SYS SYS X", "0-9 0; 0-9 0; 10-19 1", "CPU Affinity|NUMA Affinity"
    )
    assert smi.looks_like(dressed(text))
    plain, found = read(text), read(dressed(text))
    assert (found.devices, found.links, found.extra) == (plain.devices, plain.links, plain.extra)


_TABLE_ROW = """\
|   {i}  NVIDIA A100-SXM4-80GB          On  | 00000000:0{i}:00.0 Off |                   On |
| N/A   30C    P0              61W / 400W |      0MiB / 81920MiB |      N/A     Default |
|                                         |                      |             {mode} |
+-----------------------------------------+----------------------+----------------------+
"""


_LISTED = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-1)
  MIG 3g.40gb     Device  0: (UUID: MIG-1)
  MIG 1c.3g.40gb  Device  1: (UUID: MIG-2)
"""


@pytest.mark.parametrize(
    ("around", "modes"),
    [
        (_LISTED, {1: "on"}),
        (
            _TABLE_ROW.format(i=0, mode="Disabled") + _TABLE_ROW.format(i=1, mode=" Enabled"),
            {0: "off", 1: "on"},
        ),
        (_TABLE_ROW.format(i=7, mode=" Enabled"), {}),  # of a GPU that the matrix does not have
        ("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)\n", {}),
    ],
)
def test_mig_modes_around_a_matrix_are_facts_and_findings(
    around: str, modes: dict[int, str]
) -> None:
    machine = read(f"{around}\n{alike(2, 'NV12')}")
    facts = load_facts(machine.extra, "x")
    told = {i: facts.get_text(f"gpu/{i}", fact_keys.GPU_MIG) for i in range(8)}
    assert {i: mode for i, mode in told.items() if mode} == modes
    found = [f.about for f in list_findings(machine) if f.what == "mig-on"]
    assert found == ([("gpu1",)] if modes.get(1) == "on" else [])


def test_lscpu_beside_a_matrix_tells_of_a_guest() -> None:
    machine = read("Hypervisor vendor:      KVM\n" + alike(2, "PIX"))
    assert load_facts(machine.extra, "x").get_text("host", fact_keys.HOST_VIRTUAL) == "KVM"
    machine = read(alike(2, "PIX") + "\nHypervisor vendor:: KVM\n")  # as SGLang reports it
    assert load_facts(machine.extra, "x").get_text("host", fact_keys.HOST_VIRTUAL) == "KVM"
    for said in ("a Hypervisor vendor: KVM or Xen\n", "Hypervisor vendor:\n"):
        facts = load_facts(read(said + alike(2, "PIX")).extra, "x")
        assert not facts.get_text("host", fact_keys.HOST_VIRTUAL)


_PEER = "> Peer access from NVIDIA A (GPU{}) -> NVIDIA B (GPU{}) : {}\n"


_DEVICE = "Device={0} {2} Access Peer Device={1}\n"


@pytest.mark.parametrize(
    ("line", "words", "status"),
    [
        (_PEER, ("No", "No"), "not supported"),
        (_DEVICE, ("CANNOT", "CANNOT"), "not supported"),
        (_DEVICE, ("CAN", "CAN"), "ok"),
        (_DEVICE, ("CAN", "CANNOT"), None),  # of which pair is not certain
    ],
)
def test_what_cuda_samples_say_of_p2p_counts_where_it_is_the_same_of_all(
    line: str, words: tuple[str, str], status: str | None
) -> None:
    said = line.format(0, 1, words[0]) + line.format(1, 0, words[1])
    facts = load_facts(read(said + alike(2, "PHB")).extra, "x")
    for pair in ("gpu/0/p2p/1", "gpu/1/p2p/0"):
        assert facts.get_text(pair, fact_keys.P2P_READ) == status
    facts = load_facts(read(said + alike(3, "PHB")).extra, "x")
    assert facts.get_text("gpu/0/p2p/1", fact_keys.P2P_READ) is None, "gpu2 is not told of"
    asked = "$ nvidia-smi topo -p2p r\n" + alike(2, "CNS")
    facts = load_facts(read(said + alike(2, "PHB") + asked).extra, "x")
    assert facts.get_text("gpu/0/p2p/1", fact_keys.P2P_READ) == "chipset not supported"


@pytest.mark.parametrize(
    ("said", "source", "advice"),
    [
        (_PEER.format(0, 1, "No") + _PEER.format(1, 0, "No"), "simpleP2P", "see nvidia-smi topo"),
        ("$ nvidia-smi topo -p2p r\n" + alike(2, "NS"), "nvidia-smi topo -p2p r", "says no more"),
    ],
)
def test_who_refused_p2p_is_named_and_not_to_be_asked_again(
    said: str, source: str, advice: str
) -> None:
    answers = [v for v in judge_pairs(read(alike(2, "PIX") + said)) if v.kind == "p2p"]
    assert [answer.answer for answer in answers] == ["no"]
    assert answers[0].evidence[-1].startswith(f"{source}: read not supported")
    assert advice in str(answers[0].advice)


@pytest.mark.parametrize(
    ("said", "is_noted"),
    [
        ("NCCL_P2P_DISABLE=1 ./all_reduce_perf -g 2\n", True),
        ("NCCL_P2P_DISABLE: '1'\n", True),
        ("node7:12:34 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1\n", True),
        ("NCCL_P2P_DISABLE=0\n", False),
        ("unset NCCL_P2P_DISABLE\n", False),
    ],
)
def test_p2p_that_is_switched_off_for_nccl_is_noted(said: str, is_noted: bool) -> None:
    notes = read(f"top\n{said}{alike(2, 'PHB')}").notes
    assert any(str(note).startswith("line 2 has NCCL_P2P_DISABLE=1") for note in notes) is is_noted


def test_p2p_over_pcie_that_is_refused_counts_where_reads_are_not_told() -> None:
    asked = "$ nvidia-smi topo -p2p p\n" + alike(2, "NS")
    text = alike(2, "PIX") + asked
    (answer,) = (v for v in judge_pairs(read(text)) if v.kind == "p2p")
    assert (answer.answer, answer.evidence[-1]) == (
        "no",
        "nvidia-smi topo -p2p p: read not known, write not known, pcie not supported",
    )
    said = _DEVICE.format(0, 1, "CAN") + _DEVICE.format(1, 0, "CAN")
    facts = load_facts(read(said + text).extra, "x")
    assert facts.get_text("gpu/0/p2p/1", fact_keys.P2P_READ) == "ok"


def test_cpus_are_of_the_era_of_older_slots_that_the_text_states() -> None:
    gpus = "".join(
        f"- **GPU {i}:** NVIDIA GeForce RTX 3090 | 24576 MiB\n"
        "  - **PCIe:** x16 lanes negotiated (GPU max x16, Gen up to 3)\n"
        for i in range(2)
    )
    text = alike(2, "SYS", "0-7 0;8-15 1", "CPU Affinity|NUMA Affinity")
    (source,) = {x.source for x in read(gpus + text).links if x.kind == "smp"}
    assert "machines of PCIe Gen3" in str(source)
    (source,) = {
        x.source for x in read(gpus.replace("to 3", "to 4") + text).links if x.kind == "smp"
    }
    assert "machines of PCIe Gen4" in str(source)


@pytest.mark.parametrize("by", [",", ";"])
@pytest.mark.parametrize("corner", ["", "device"])
def test_matrices_of_spreadsheets_are_read(by: str, corner: str) -> None:
    """Ranges of CPUs have commas of their own, in quotes or not."""
    rows = (
        (corner, "GPU0", "GPU1", "NIC0", "CPU Affinity", "NUMA Affinity"),
        ("GPU0", "X", "NV4", "PHB", "0-7,16-23", "0"),
        ("GPU1", "NV4", "X", "SYS", '"8-15,24-31"' if by == "," else "8-15,24-31", "1"),
        ("NIC0", "PHB", "SYS", "X", "", ""),
    )
    text = "\r\n".join(by.join(row) for row in rows)
    told = smi.read("Our box, GPU0, GPU1:\n" + text + "\nas exported, today\n", "a.csv")
    tabs = "\n".join("\t".join(row).replace('"', "") for row in rows).replace(corner, "")
    assert told.fingerprint == smi.read(tabs, "a.txt").fingerprint
    nodes = [facts(told).get_number(f"gpu/{i}", fact_keys.GPU_NUMA_NODE) for i in range(2)]
    assert nodes == [0, 1]


def test_links_of_nics_in_lspci_count_where_all_are_alike() -> None:
    matrix = "\tGPU0\tmlx5_0\tmlx5_1\nGPU0\tX\tPHB\tPHB\nmlx5_0\tPHB\tX\tPHB\nmlx5_1\tPHB\tPHB\tX\n"
    nic = (
        "{}:00.0 Infiniband controller: Mellanox Technologies MT28908 Family\n"
        "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported\n"
        "\t\tLnkSta:\tSpeed 16GT/s (ok), Width x{} (downgraded)\n"
    )
    both = smi.read(matrix + nic.format("31", 8) + nic.format("ca", 8), "a.txt")
    assert {both.capacity_GBps[nic, "cpu0"] for nic in ("mlx5_0", "mlx5_1")} == {12}
    assert both.capacity_GBps["gpu0", "cpu0"] == 12, "Gen3 x16, assumed"
    source = next(str(link.source) for link in both.links if link.src == "mlx5_0")
    assert "Gen4 x8, as line 7 says of 0000:31:00.0" in source
    for told in (nic.format("31", 8), nic.format("31", 8) + nic.format("ca", 4)):
        machine = smi.read(matrix + told, "a.txt")
        assert "0000:31:00.0 Gen4 x8 (line 7)" in notes(machine)
        assert all("assumed" in str(link.source) for link in machine.links)


def test_lines_that_a_terminal_wrapped_with_spaces_are_joined() -> None:
    lines = (
        "        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity",
        "GPU0     X      PIX     PHB     PHB     0-17,36-53      0",
        "GPU1    PIX      X      PHB     PHB     0-17,36-53      0",
        "GPU2    PHB     PHB      X      PIX     18-35,54-71     1",
        "GPU3    PHB     PHB     PIX      X      18-35,54-71     1",
    )
    text = "\n".join(lines)
    wrapped = "\n".join(line[:48] + " " * 120 + line[48:] for line in lines)
    assert smi.read(wrapped, "a.txt").fingerprint == smi.read(text, "a.txt").fingerprint


@pytest.mark.parametrize(
    ("line", "generation"),
    [
        ("PCIe Device Max: Gen5", 5),
        ("| 0 | x16 | Gen4 | Gen1 |", 4),
        ("PCIe rests at Gen1", 0),
        ("NVMe: PCIe Gen4", 0),
    ],
)
def test_a_generation_of_pcie_that_is_not_followed_is_noted(line: str, generation: int) -> None:
    matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"
    notes = " ".join(read(f"{line}\n\n{matrix}").extra["notes"])
    assert ("but not as the link that a GPU has" in notes) == (generation > 0)
    assert generation == 0 or f"line 1 names PCIe Gen{generation}" in notes


@pytest.mark.parametrize("legend", ["", "NIC1: mlx5_1\n"])
def test_nics_whose_interfaces_are_down_are_noted(legend: str) -> None:
    nic = "NIC1" if legend else "mlx5_1"
    matrix = f"\tGPU0\tmlx5_0\t{nic}\nGPU0\t X \tPIX\tPHB\n"
    ports = "mlx5_0 port 1 ==> ens1np0 (Up)\nmlx5_1 port 1 ==> ens2np0 (Down)\n"
    notes = " ".join(read(f"{ports}mlx5_9 port 1 ==> ens9np0 (Down)\n{matrix}{legend}").notes)
    assert "mlx5_1: down, as ibdev2netdev says" in notes
    assert "mlx5_0: down" not in notes and "mlx5_9" not in notes


@pytest.mark.parametrize(
    ("said", "noted"),
    [
        ("four cards, no peer-to-peer:\n", 'line 1 has "no peer-to-peer"'),
        ("P2P is not supported here\n", 'line 1 has "P2P is not supported"'),
        ("P2P works\n", ""),
    ],
)
def test_words_that_there_is_no_p2p_are_noted(said: str, noted: str) -> None:
    notes = [str(note) for note in read(f"{said}{alike(2, 'PHB')}").notes]
    assert any(note.startswith(noted) for note in notes if "not counted" in note) is bool(noted)
