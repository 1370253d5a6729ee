"""What files say never reaches a terminal raw: control, bidi and zero-width characters are
escaped.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from called import call_command
from needs import has_extra, list_runnable
from planned import synthesize

from topoplan.synth.describe import describe_plan
from topoplan.synth.ir.collective import Collective
from topoplan.topo.graph import Topology
from topoplan.topo.pictures import table, text_tree
from topoplan.topo.printable import printable, printable_lines

NIC = "mlx5\u202e_0"
ID, NAME, NOTE = "gpu\u202e0\u200b", "bo\u2066x\u3164", "\x1b]0;title\x07\x1b[31mred\ntwo\u202e"
SHOWN_ID, SHOWN_NOTE = r"gpu\u202e0\u200b", r"note: \x1b]0;title\x07\x1b[31mred\ntwo\u202e"
_COLOURS = re.compile("\x1b\\[[0-9;]*m")


def hostile() -> Topology:
    """Two GPUs with names that deceive; brackets in one would be markup for rich."""
    measured = {"GBps": 3, "us": 1.5, "source": NAME, "how": "alone"}
    rates = {"declared": {"GBps": 24, "us": 1, "source": NAME}, "measured": measured}
    link = {**rates, "src": ID, "dst": "gpu[/1]", "kind": "nv\u202elink", "source": NAME}
    data = {
        "name": NAME,
        "devices": [{"id": ID, "name": NAME}, {"id": "gpu[/1]"}, {"id": NIC, "kind": "nic"}],
        "links": [{**link, "bidirectional": True}, {"src": NIC, "dst": ID, "bidirectional": True}],
        "facts": [{"subject": NAME, "key": NAME, "source": NAME, "value": NAME}],
        "notes": [NOTE],
    }
    return Topology.loads(json.dumps(data))


def assert_harmless(text: str) -> None:
    raw = {c for c in text if not c.isprintable() and c not in "\n\t"} | ({"\u3164"} & set(text))
    assert not raw, f"raw characters: {raw}"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("gpu0 · ランク 🙂", "gpu0 · ランク 🙂"),
        ("\x1b[2J\x9b1m\x07\r\n\t", r"\x1b[2J\x9b1m\x07\r\n\t"),
        ("\u202ea\u2066b\u061c\u200f", r"\u202ea\u2066b\u061c\u200f"),
        (
            "\u200b\u200d\ufeff\u2060\xad\u034f\u3164\ufe0f",
            r"\u200b\u200d\ufeff\u2060\xad\u034f\u3164\ufe0f",
        ),
        ("\u2028\ud800\U000e0041", r"\u2028\ud800\U000e0041"),
    ],
)
def test_what_does_not_show_becomes_an_escape(raw: str, shown: str) -> None:
    assert printable(raw) == shown and printable(shown) == shown
    assert printable_lines(f"{raw.strip()}\n\ta") == f"{printable(raw.strip())}\n\ta"


@pytest.mark.parametrize("colour", [False, True])
def test_tables_and_trees_escape_ids_names_and_notes(colour: bool) -> None:
    for write in (table.write, text_tree.write):
        text = write(hostile(), colour)
        assert_harmless(_COLOURS.sub("", text))
        assert SHOWN_ID in text and "\x1b[31m" not in text
    assert SHOWN_NOTE in _COLOURS.sub("", table.write(hostile())).splitlines()


def test_rows_of_a_table_stay_aligned() -> None:
    rows = [line for line in table.write(hostile()).splitlines() if line.startswith("     0")]
    plain = Topology.loads(hostile().dumps().replace(json.dumps(ID)[1:-1], "g" * len(SHOWN_ID)))
    others = [line for line in table.write(plain).splitlines() if line.startswith("     0")]
    assert rows and [line.replace(SHOWN_ID, "g" * len(SHOWN_ID)) for line in rows] == others


def test_what_python_describes_is_escaped() -> None:
    plan = synthesize(Collective("allreduce", 2), hostile(), "ring").plan
    for text in (hostile().describe(), describe_plan(plan, 1 << 20), plan.schedules[0].describe()):
        assert_harmless(text)


def test_json_keeps_such_characters_escaped() -> None:
    again = Topology.loads(hostile().dumps())
    assert again == hostile() and again.extra["notes"] == [NOTE]
    assert_harmless(hostile().dumps())


@pytest.mark.parametrize(
    ("command", "arguments", "code"),
    list_runnable(
        [
            *([("probe", ["FILE", "--check"], 1)] if has_extra("doctor") else []),
            ("probe", ["FILE", "--format", "smi"], 0),
            (
                "synth",
                [
                    "--collective",
                    "allreduce",
                    "--topology",
                    "FILE",
                    "--strategy",
                    "ring",
                    *(["--explain"] if has_extra("explain") else []),
                ],
                0,
            ),
            (
                "synth",
                ["--collective", "broadcast", "--root", "0", "--topology", "FILE", "--bound-only"],
                0,
            ),
            ("place", ["FILE", "--traffic", "all=allreduce:1M"], 0),
            ("judge", ["FILE"], 2),
            ("probe", ["\x1b[31m\u202e/no.json"], 2),
            ("probe", ["--\x1b[31m\u202e"], 2),
        ]
    ),
)
def test_commands_print_nothing_raw(
    command: str, arguments: list[str], code: int, tmp_path: Path
) -> None:
    file = tmp_path / "box\u202e.json"
    file.write_text(hostile().dumps())
    given = [str(file) if argument == "FILE" else argument for argument in arguments]
    done = call_command(command, *given)
    assert done.returncode == code, done.stderr
    assert_harmless(done.stdout)
    assert_harmless(done.stderr)
    assert r"\u202e" in done.stdout + done.stderr
