"""Plans for many ranks in compact form: nothing is lost, damage is noticed, bombs are refused."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import synthesize
from thorough import count_examples

from topoplan.synth.ir.collective import Chunk, collective_on
from topoplan.synth.ir.columns import ColumnFields, read_columns, write_columns
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.ir.transfers import Transfer, Transfers
from topoplan.synth.plan import Plan
from topoplan.synth.plan_text import hash_of
from topoplan.topo.errors import InputError, TopoplanError, VerificationError
from topoplan.topo.presets import preset
from topoplan.topo.schema import MOST, read_as


def make(argument: str, strategy: str = "packing") -> Plan:
    topology = preset(argument)
    return synthesize(collective_on("allreduce", topology), topology, strategy, 20).plan


@cache
def make_wide() -> Plan:
    """Return a plan for so many ranks that its transfers are columns."""
    return make("switch:65", "double-tree")


@cache
def write_wide() -> str:
    return json.dumps(make_wide().to_json())


def columns_of_wide() -> dict[str, Any]:
    """Return the columns of its last schedule."""
    columns: dict[str, Any] = json.loads(write_wide())["schedules"][-1]["columns"]
    return columns


@cache
def inflate() -> bytes:
    return zlib.decompress(b64decode(columns_of_wide()["deflated"]))


RANKS = st.integers(0, 5) | st.integers(0, MOST - 1)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[tuple[Chunk, ...], Transfers]:
    share = st.fractions(0, 1).filter(bool)
    chunk = st.builds(Chunk, share, st.none() | RANKS, st.none() | RANKS)
    chunks = draw(st.lists(chunk, min_size=1, max_size=8))
    route = st.lists(st.sampled_from(["a", "b", "c c"]), max_size=3).map(tuple)
    op = st.sampled_from(["copy", "reduce"])
    places = st.integers(0, len(chunks) - 1)
    transfer = st.builds(Transfer, RANKS, RANKS, RANKS, places, op, route)
    transfers = Transfers.of(draw(st.lists(transfer, max_size=30)))
    return tuple(chunks), transfers.sorted() if draw(st.booleans()) else transfers


@settings(max_examples=count_examples(10))
@given(schedules())
def test_any_schedule_reads_back_with_its_order(
    schedule: tuple[tuple[Chunk, ...], Transfers],
) -> None:
    written = json.loads(json.dumps(write_columns(*schedule)))
    assert read_columns(read_as(written, ColumnFields, "columns"), "columns") == schedule


def test_a_plan_for_many_ranks_reads_back_equal(tmp_path: Path) -> None:
    wide = make("mesh:5x13")  # several schedules
    wide.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == wide and again.hash == wide.hash
    assert json.loads((tmp_path / "plan.json").read_text())["version"] == 2


def test_up_to_64_ranks_transfers_stay_rows() -> None:
    data = make("star:64").to_json()
    assert data["version"] == 1
    assert all("transfers" in s and "columns" not in s for s in data["schedules"])


def test_files_of_version_1_with_rows_for_many_ranks_are_read() -> None:
    wide = make_wide()
    data = wide.to_json()
    for row, schedule in zip(data["schedules"], dict.fromkeys(wide.schedules), strict=False):
        del row["columns"]
        row |= schedule.uncut._list_rows()
    data = {**data, "version": 1}
    del data["hash"]
    assert Plan.loads(json.dumps({**data, "hash": hash_of(data)})) == wide


def forge(**changes: Any) -> str:
    """The plan's JSON with changed columns, and a hash that fits."""
    data = json.loads(write_wide())
    del data["hash"]
    data["schedules"][-1]["columns"] |= changes
    return json.dumps({**data, "hash": hash_of(data)})


def deflate(raw: bytes, level: int = 9) -> str:
    return b64encode(zlib.compress(raw, level)).decode()


def test_the_hash_is_the_same_whatever_zlib_writes() -> None:
    text = forge(deflated=deflate(inflate(), 1))
    assert text != forge()
    assert json.loads(text)["hash"] == make_wide().hash == Plan.loads(text).hash


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda: {"deflated": deflate(inflate()[:-1])}, "deflated: expected "),
        (lambda: {"deflated": deflate(inflate() + b"\0")}, "deflated: expected "),
        (lambda: {"deflated": deflate(bytes(10**8), 1)}, "deflated: expected "),
        (lambda: {"deflated": columns_of_wide()["deflated"][:-8]}, "deflated: expected "),
        (lambda: {"deflated": "@@@"}, "deflated: damaged: "),
        (lambda: {"deflated": "é"}, "deflated: damaged: "),
        (lambda: {"deflated": b64encode(b"none").decode()}, "deflated: damaged: "),
        (lambda: {"deflated": deflate(inflate()[::-1])}, "the columns do not match their sha256"),
        (lambda: {"transfers": 10**8}, "more than 1024 MiB"),
        (lambda: {"transfers": 10**6}, "deflated: expected "),
        (lambda: {"widths": [3] * 11}, "widths[0]: expected one of 1, 2, 4, got 3"),
        (lambda: {"widths": [1] * 10}, "widths: expected a list"),
        (lambda: {"shares": []}, "share 0; expected from 0 to -1"),
        (lambda: {"devices": []}, "device 0; expected from 0 to -1"),
        (lambda: {"chunks": -1}, "chunks: expected a whole number"),
        (lambda: {"extra": 1}, "unknown field 'extra'"),
    ],
)
def test_damaged_columns_are_refused_in_one_line(
    change: Callable[[], dict[str, Any]], says: str
) -> None:
    with pytest.raises(VerificationError) as caught:
        Plan.loads(forge(**change()), "plan.json")
    message = str(caught.value)
    assert message.startswith("plan.json: ") and says in message and "\n" not in message


def test_columns_of_all_schedules_together_are_bounded() -> None:
    data = json.loads(forge())
    del data["hash"]
    data["schedules"] = [data["schedules"][-1]] * 300
    for row in data["schedules"]:
        row["columns"]["transfers"] = 10**6
    with pytest.raises(VerificationError, match="take more than 1024 MiB"):
        Plan.loads(json.dumps({**data, "hash": hash_of(data)}))


@pytest.mark.parametrize("also", ["chunks", "routes", "transfers"])
def test_rows_beside_columns_are_refused(also: str) -> None:
    row = {**json.loads(write_wide())["schedules"][-1], also: []}
    with pytest.raises(InputError, match="expected either chunks, routes and transfers, or"):
        Schedule.from_json(row)
    del row["columns"]
    with pytest.raises(InputError, match="expected either chunks, routes and transfers, or"):
        Schedule.from_json(row)


@settings(max_examples=count_examples(20), deadline=None)
@given(st.data())
def test_forged_columns_give_one_line_or_another_valid_plan(data: st.DataObject) -> None:
    raw = bytearray(inflate())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    sha256 = hashlib.sha256(raw).hexdigest()
    columns: dict[str, Any] = {"deflated": deflate(bytes(raw), 1), "sha256": sha256}
    field = data.draw(st.sampled_from(["chunks", "routes", "hops", "transfers", "by_chunk", ""]))
    if field:
        columns[field] = data.draw(st.integers(-1, MOST) | st.integers(0, 300) | st.booleans())
    try:
        Plan.loads(forge(**columns)).verify()
    except TopoplanError as error:
        assert "\n" not in str(error)


def test_equal_schedules_of_other_processes_have_one_hash() -> None:
    """A pickled hash of texts would be another process's."""
    code = (
        "import pickle, sys\n"
        "from dataclasses import replace\n"
        "other = pickle.load(sys.stdin.buffer)\n"
        "print(hash('gpu0'), hash(other), hash(replace(other)))\n"
    )
    topology = preset("switch:3")
    own = synthesize(collective_on("allreduce", topology), topology, "direct").plan.schedules[0]
    assert hash(own) == hash(replace(own))  # cached from here on
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        input=pickle.dumps(own),
        capture_output=True,
        check=True,
    )
    of_text, first, second = done.stdout.decode().split()
    assert of_text != str(hash("gpu0"))
    assert first == second
