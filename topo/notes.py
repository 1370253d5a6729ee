"""Notes on a topology and sources of its values: text for people that also has a kind for programs.

Both are the text itself (subclasses of str), so they print, compare and become JSON as such. Code
reads the kind and the fields; it never searches the text.

Kinds of notes, with the contents of `about` and `detail`. The last column names the code that acts
on the kind: the doctor (topo-probe --check), GPUDirect's rules, errors about a machine without
GPUs, or given and assumed rates (of the network, of topo-place, of boxes: the hosts of a cluster,
all alike).

| kind | meaning | about | detail | used by |
| --- | --- | --- | --- | --- |
| text | anything else, also every note of a file without `note_kinds` | | | people |
| no-driver | NVML does not answer | | the reason | doctor, errors |
| gpu-not-listed | a GPU on PCI, unknown to the driver | PCI address | vendor | doctor, errors |
| gpu-lost | a GPU no longer answers the driver | its id | the reason | errors |
| gpu-hidden | CUDA_VISIBLE_DEVICES or the job hides GPUs | their ids | | errors, doctor |
| no-gpus | the file lists no GPU | | | errors |
| link-without-peer | links lead to no known GPU | GPUs | nvlink or xgmi | doctor |
| nvlinks-left-out | the text leaves out NVLinks or xGMI | GPUs | their board | doctor, GPUDirect |
| no-nvlink-elements | the file has no NVLinks of GPUs whose boards have them | | | doctor |
| board-assumed | the text names no GPUs; one of several boards is assumed | | | rates |
| network-rate-assumed | a rate into the network is assumed | ports | the host's own words | rates |

Kinds of sources, of the bandwidths of links; given rates replace assumed ones only:

| kind | meaning | written, also in files |
| --- | --- | --- |
| stated | a file, a driver or a user states the value | the name of that source |
| assumed | no source states it | assumed: the reason |
| | the datasheet's rate of a board that is named | assumed: ..., by the GPUs: the names |
| counted | a library's effective rate, not the datasheet's | ..., as NCCL (or RCCL) counts it |
| rated | generation and width are stated, the rate is a library's for them | ..., at NCCL's count |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, cast, get_args

from msgspec import Struct

NoteKind = Literal[
    "text",
    "no-driver",
    "gpu-not-listed",
    "gpu-lost",
    "gpu-hidden",
    "no-gpus",
    "link-without-peer",
    "nvlinks-left-out",
    "no-nvlink-elements",
    "board-assumed",
    "network-rate-assumed",
]
SourceKind = Literal["stated", "assumed", "counted", "rated"]

# Kinds that explain why a machine has no GPU.
_WITHOUT_GPUS = ("no-driver", "gpu-not-listed", "gpu-lost", "gpu-hidden", "no-gpus")
_COUNTED = re.compile(r"as (NCCL|RCCL) counts it$")
_RATED = re.compile(r"at (NCCL|RCCL)'s count$")
# How sources name the board whose datasheet has the rate, and what `Source.by` is then.
_OF_BOARD = re.compile(r"\bby the GPUs?: ")
BOARD = "board"


class Note(str):
    """One line of text about something unknown or unusual in a machine, with a kind for programs.

    `about` names devices, mostly by id, and `detail` gives a reason or another text; a table in the
    module's docstring has the contents of both for each kind.
    """

    kind: NoteKind
    about: tuple[str, ...]
    detail: str

    def __new__(
        cls, text: str, kind: NoteKind = "text", about: Iterable[str] = (), detail: str = ""
    ) -> Note:
        """Return `text` as a note with these fields."""
        note = super().__new__(cls, text)
        note.kind, note.about, note.detail = kind, tuple(about), detail
        return note

    def with_text(self, text: str) -> Note:
        """Return a note with this kind and these fields, but another text."""
        return Note(text, self.kind, self.about, self.detail)


class Source(str):
    """The text that says where a bandwidth comes from, with a kind for programs.

    `kind` is stated (by a file, a driver or a user), assumed (nothing states the value), counted
    (the rate in the model of the library `by`, NCCL or RCCL) or rated (a text states what the link
    is, and the rate is that library's for such a link, which carries up to a third more). An
    assumed rate that is the datasheet's of a board that the file names is `by` BOARD: a limit, not
    a guess. Otherwise `by` is empty.
    """

    kind: SourceKind
    by: str

    def __new__(cls, text: str, kind: SourceKind = "stated", by: str = "") -> Source:
        """Return `text` as a source of this kind."""
        source = super().__new__(cls, text)
        source.kind, source.by = kind, by
        return source


def assumed(reason: str = "") -> Source:
    """Return the source of kind `assumed`, for a value that nothing states.

    A reason "..., by the GPUs: NAMES" says that it is the datasheet's rate of a named board.
    """
    return read_source(f"assumed: {reason}" if reason else "assumed")


def counted(what: str, by: str) -> Source:
    """Return the source of kind `counted`, for a rate in the model of the library `by`.

    `what` names the link or figure; the text becomes "<what>, as <by> counts it".
    """
    return Source(f"{what}, as {by} counts it", "counted", by)


def rated(what: str, by: str) -> Source:
    """Return the source of kind `rated`, for a link that a text describes without a rate.

    `what` says how and where; the text becomes "<what>, at <by>'s count".
    """
    return Source(f"{what}, at {by}'s count", "rated", by)


@lru_cache(maxsize=1024)  # the 300,000 links of a cluster share a few dozen sources
def read_source(text: str) -> Source:
    """Return the source with a text from a file, and the kind that its wording gives.

    That is `assumed` for "assumed: ...", `counted` for "..., as NCCL counts it", `rated` for "...,
    at NCCL's count", else `stated`.
    """
    if text.partition(":")[0] == "assumed":
        return Source(text, "assumed", BOARD if _OF_BOARD.search(text) else "")
    if match := _COUNTED.search(text):
        return Source(text, "counted", match[1])
    match = _RATED.search(text)
    return Source(text, "rated", match[1]) if match else Source(text)


def find_board_words(source: str) -> str:
    """Return the words of a source that name the boards whose datasheet's rate it is, or ""."""
    match = _OF_BOARD.search(source)
    return source[match.end() :] if match and source.startswith("assumed") else ""


def list_notes(extra: Mapping[str, Any]) -> tuple[Note, ...]:
    """Return the notes in a topology's `extra`.

    Plain strings become notes of kind `text`; other values are ignored.
    """
    notes = extra.get("notes")
    return (
        tuple(
            note if isinstance(note, Note) else Note(note)
            for note in notes
            if isinstance(note, str)
        )
        if isinstance(notes, (list, tuple))
        else ()
    )


def explain_no_gpus(notes: Iterable[Note]) -> Note | None:
    """Return the first note that says why a machine has no GPU, or None if there is none."""
    return next((note for note in notes if note.kind in _WITHOUT_GPUS), None)


class NoteFields(Struct):
    """Kind and fields of a note."""

    kind: str = "text"
    about: list[str] = []
    detail: str = ""


def note_kinds_to_json(notes: Iterable[Note]) -> dict[str, dict[str, Any]]:
    """Return a file's `note_kinds`: the kind and fields of each note, keyed by the note's text.

    JSON has notes as plain strings, so `restore_notes` needs it. Notes of kind `text` are left out.
    """
    return {
        str(note): {"kind": note.kind, "about": list(note.about), "detail": note.detail}
        for note in notes
        if note.kind != "text"
    }


def restore_notes(notes: Any, kinds: Mapping[str, NoteFields]) -> Any:
    """Return a file's `notes` as Note objects, with the kinds of its `note_kinds`.

    `kinds` is keyed by the note's text. Strings without a known kind stay plain strings; `notes`
    that are not a list, and items that are not strings, are returned unchanged.
    """
    if not isinstance(notes, list):
        return notes
    return [
        Note(note, cast(NoteKind, row.kind), row.about, row.detail)
        if isinstance(note, str) and (row := kinds.get(note)) and row.kind in get_args(NoteKind)
        else note
        for note in notes
    ]
