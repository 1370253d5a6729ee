"""Notes and sources: their kinds survive JSON, pickling and joining hosts."""

from __future__ import annotations

import json
import pickle
import re
from typing import get_args

import pytest

from topoplan.topo import notes as module
from topoplan.topo.derived.hosts import join_hosts
from topoplan.topo.derived.parts import split_hosts
from topoplan.topo.errors import InputError
from topoplan.topo.graph import Device, Link, Topology
from topoplan.topo.notes import (
    Note,
    NoteKind,
    Source,
    assumed,
    counted,
    explain_no_gpus,
    rated,
    read_source,
)

PEERLESS = Note("gpu0: its nvlink leads nowhere", "link-without-peer", ["gpu0"], "nvlink")


def make_box(*notes: str, name: str = "box") -> Topology:
    devices = Device("gpu0"), Device("cpu0", "cpu")
    return Topology(name, devices, (Link("gpu0", "cpu0"),), extra={"notes": list(notes)})


def get_fields(note: Note) -> tuple[str, str, tuple[str, ...], str]:
    return str(note), note.kind, note.about, note.detail


def test_json_has_notes_as_strings_and_gives_back_their_kinds() -> None:
    box = make_box("odd", PEERLESS)
    data = json.loads(box.dumps())
    assert data["notes"] == ["odd", str(PEERLESS)]
    assert data["note_kinds"] == {
        str(PEERLESS): {"kind": "link-without-peer", "about": ["gpu0"], "detail": "nvlink"}
    }
    again = Topology.from_json(data)
    assert again == box and "note_kinds" not in again.extra
    assert [get_fields(n) for n in again.notes] == [get_fields(n) for n in box.notes]
    assert again.to_json() == box.to_json()


def test_plain_strings_are_text_and_unknown_kinds_are_left() -> None:
    data = make_box("odd").to_json()
    assert "note_kinds" not in data
    later = {**data, "note_kinds": {"odd": {"kind": "of-a-later-version"}}}
    assert [note.kind for note in Topology.from_json(later).notes] == ["text"]
    assert Topology.from_json({**data, "notes": "one line"}).notes == ()
    with pytest.raises(InputError, match="note_kinds"):
        Topology.from_json({**data, "note_kinds": ["odd"]})
    with pytest.raises(InputError, match=r"note_kinds\[\.\.\.\]\.about\[0\]: expected"):
        Topology.from_json({**data, "note_kinds": {"odd": {"about": [5]}}})


def test_notes_keep_their_kind_through_joining_and_splitting_hosts() -> None:
    whole = join_hosts(
        [make_box(PEERLESS, name="a"), make_box(name="b")], [(0, "gpu0"), (1, "gpu0")]
    )
    assert [n.kind for n in whole.notes].count("network-rate-assumed") == 2
    first = next(iter(split_hosts(Topology.loads(whole.dumps())).values())).notes[0]
    assert get_fields(first) == get_fields(PEERLESS)


@pytest.mark.parametrize(
    ("source", "kind", "by"),
    [
        (assumed(), "assumed", ""),
        (assumed("10 Gbit/s Ethernet"), "assumed", ""),
        (counted("18 x nvlink", "NCCL"), "counted", "NCCL"),
        (assumed(counted("PCIe Gen3 x16", "NCCL")), "assumed", ""),
        (rated("Gen5 x8, as line 2 says", "NCCL"), "rated", "NCCL"),
        (Source("assumedly the datasheet"), "stated", ""),
    ],
)
def test_sources_are_read_back_from_their_written_form(source: Source, kind: str, by: str) -> None:
    for same in (source, read_source(str(source)), pickle.loads(pickle.dumps(source))):
        assert (str(same), same.kind, same.by) == (str(source), kind, by)
    link = Link("a", "b", source=str(source))
    assert (link.is_assumed, link.counted_by) == (kind == "assumed", by)


def test_why_there_are_no_gpus() -> None:
    silent = Note("NVML does not answer", "no-driver")
    assert explain_no_gpus([Note("a GPU is odd"), silent]) is silent
    assert explain_no_gpus([PEERLESS]) is None


def test_every_kind_has_a_row_in_the_table() -> None:
    rows = re.findall(r"^\| ([a-z][a-z-]+) \|", module.__doc__ or "", re.MULTILINE)
    assert rows == ["kind", *get_args(NoteKind), "kind", *get_args(module.SourceKind)]
