"""What recognizes and reads other tools' files: of machines, of places of hosts, and of neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..graph import Topology


@dataclass(frozen=True)
class Format:
    """A format of one machine's file.

    `name` is for messages. `starts(text)` is true for a text that begins as the format does, after
    an XML declaration and comments. `read(text, where)` builds the topology.

    Formats are tried in order; one of an extra comes before the format of the core that `before`
    names, else after all of them. `root` is the outermost element of a format in XML, which people
    paste with text around it, and `find_inside(text)` returns a text in the format from amid
    another one, or None. Programs put texts in the format into strings of their JSON if `in_json`.
    `like` names formats of the core whose headings texts in this one have, too.
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
    """What texts may have beside a machine, and that describes none: refused where it is alone.

    `describe(text)` says what a text has of it, None without any. JSON with `mark` in it is of it
    alone, if it has any.
    """

    describe: Callable[[str], str | None]
    mark: str


@dataclass(frozen=True)
class Skeletons:
    """Files that lack what only the machine knows that they are for.

    `is_one(text)` says whether a text is such a file; `fill(text, where, machine)` returns the
    probed machine as the file has it.
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
