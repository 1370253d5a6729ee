"""What recognizes and reads other tools' files: of machines, of places of hosts, and of neither.

Extras, the optional parts of topoplan (extras.py at the root), add instances of these classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..graph import Topology


@dataclass(frozen=True)
class Format:
    """A format of one machine's file.

    `name` is for messages. `starts(text)` is true for a text that begins as the format does, after
    an XML declaration and comments. `read(text, where)` builds the topology of such a text; `where`
    names the file in errors.

    Formats are tried in order. A format of an extra is tried before the format of the core that
    `before` names, or after all formats of the core if that is "". `root` is the tag of the
    outermost element if the format is XML, else "": people paste such elements with other text
    around them. `find_inside(text)` returns the part of a text that is in this format, or None if
    it has no such part. `in_json` says that other programs put texts in this format into strings
    of their JSON. `like` names formats of the core for which `starts` is also true of texts in
    this format, so that such a text is not taken for two descriptions of machines.
    """

    name: str
    starts: Callable[[str], object]
    read: Callable[[str, str], Topology]
    before: str = ""
    root: str = ""
    find_inside: Callable[[str], str | None] | None = None
    in_json: bool = False
    like: tuple[str, ...] = ()


@dataclass(frozen=True)
class Aside:
    """A kind of output that may stand in a text beside a machine's, but describes no machine.

    Texts with nothing else are refused. `describe(text)` returns a line on the output of this kind
    in a text, None if there is none. JSON that contains the string `mark` is refused if it has
    output of this kind, whatever else it has.
    """

    describe: Callable[[str], str | None]
    mark: str


@dataclass(frozen=True)
class Skeletons:
    """Files that describe a part of their machine, so that the rest must be probed on it.

    `is_one(text)` says whether a text is such a file. `fill(text, where, machine)` returns the
    probed topology `machine` with what the file says of it; `where` names the file in errors.
    """

    is_one: Callable[[str], bool]
    fill: Callable[[str, str, Topology], Topology]


@dataclass(frozen=True)
class PlaceFormats:
    """Formats that only say which switch each host is below; every host is a copy of one box.

    A box is the contents of one host; the user names it in an option of the command.

    - `list_names()` returns the formats' names, for messages.
    - `read_box(argument, resolve)` returns the box that the option's value `argument` names;
      `resolve(argument)` loads the topology of a preset or file. It raises InputError if that is
      not one host with GPUs.
    - `read(text, where, box)` returns the topology of a text in one of the formats, or None if the
      text is in none of them and `box` is None. `where` names the text in errors; `box` is what
      `read_box` returned, None if the user gave no box. It raises InputError for a malformed text,
      for a text in one of the formats without a box, and for any other text with a box.
    """

    list_names: Callable[[], list[str]]
    read_box: Callable[[str, Callable[[str], Topology]], Any]
    read: Callable[[str, str, Any], Topology | None]
