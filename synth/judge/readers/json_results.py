"""Read results that are JSON: nccl-tests' (-J), topo-run's (--json), and the lines of NCCL
Inspector.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ....topo.errors import InputError
from ....topo.exact import load_json
from ..found import Measurement, Place, Reading
from .log_lines import name_collective
from .tests_table import read_bus, read_version

_MOST_LINES = 2_000_000
_WRAPPERS = ("log", "message", "msg", "textPayload")


def read_json(text: str, where: str) -> Reading:
    """Return what a JSON text says. Raises InputError where it is none of the kinds that are known,
    or is cut off.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and _is_whole(lines[0]) and lines[0].lstrip().startswith("{"):
        return _read_inspector(
            [_load(line, where, number) for number, line in enumerate(lines, 1)], where
        )
    data = _load(text, where)
    if (
        isinstance(data, list)
        and data
        and all(isinstance(x, dict) and "coll_perf" in x for x in data)
    ):
        return _read_inspector(data, where)
    if not isinstance(data, dict):
        raise InputError(
            f"{where}: JSON that is no result; expected nccl-tests' -J, topo-run --json or NCCL "
            "Inspector's"
        )
    if "coll_perf" in data:
        return _read_inspector([data], where)
    if isinstance(data.get("results"), list):
        return _read_nccl_tests(data, where)
    if isinstance(data.get("runs"), list):
        parts = [
            _read_topo_run(run, where).measurements for run in data["runs"] if isinstance(run, dict)
        ]
        return _whole_reading(
            Reading(where, "topo-run's JSON", None, tuple(m for part in parts for m in part))
        )
    if isinstance(data.get("rows"), list):
        return _read_topo_run(data, where)
    if data.get("format") == "topoplan-plan":
        raise InputError(
            f"{where}: a plan, which says what could be; give topo-run's --json of it, which says "
            "what is"
        )
    if data.get("format") == "topoplan-topology" or "devices" in data:
        raise InputError(
            f"{where}: a topology; give it by --topology, and here a log, a graph dump or a table"
        )
    known = ", ".join(list(map(str, data))[:5])[:80]
    raise InputError(
        f"{where}: JSON with {known or 'nothing'}; expected nccl-tests' -J (results), topo-run "
        "--json (rows) or NCCL "
        "Inspector's lines (coll_perf)"
    )


def unwrap_log(text: str) -> str | None:
    """Return the text inside a container's log, in which each line is an object with the line in
    it; None for any other.
    """
    out: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            if not out:
                return None
            continue
        inside = (
            next((entry[key] for key in _WRAPPERS if isinstance(entry.get(key), str)), None)
            if isinstance(entry, dict)
            else None
        )
        if inside is None:
            return None
        out.append(inside.rstrip("\n"))
    return "\n".join(out) if out else None


def _load(text: str, where: str, line: int | None = None) -> Any:
    try:
        return load_json(text, exact=False)
    except json.JSONDecodeError as error:
        at = line if line is not None else error.lineno
        raise InputError(
            f"{where}, line {at}: not whole JSON: {error.msg}; is the file cut off?"
        ) from None
    except ValueError as error:
        raise InputError(f"{where}: not usable JSON: {error}") from None


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _real(value: object) -> float | None:
    """Return a number that is finite and not negative, None for anything else ("nan" stands for one
    that is not).
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _whole(value: object) -> int | None:
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
        else None
    )


def _rows(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the objects of a list."""
    listed = data.get(key)
    return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []


# -- nccl-tests
# ------------------------------------------------------------------------------------------------------


def _read_nccl_tests(data: Mapping[str, Any], where: str) -> Reading:
    """Return what nccl-tests wrote by -J."""
    arguments = data.get("args")
    first = str(arguments[0]) if isinstance(arguments, list) and arguments else ""
    name = name_collective(first.rsplit("/", 1)[-1])
    if name is None:
        raise InputError(
            f"{where}: results of {first.rsplit('/', 1)[-1] or 'an unnamed test'}, which is no "
            "collective that has a bound "
            "here; give those of all_reduce_perf or another collective"
        )
    places = {}
    for device in _rows(data, "devices"):
        rank, number = _whole(device.get("rank")), _whole(device.get("device"))
        if rank is not None and rank < 1 << 16:
            host = device.get("hostname")
            places[rank] = Place(
                host if isinstance(host, str) else None,
                number,
                read_bus(str(device.get("device_hex"))),
            )
    config = data.get("config") if isinstance(data.get("config"), dict) else {}
    assert isinstance(config, dict)
    ranks = max(places, default=-1) + 1 or (_whole(config.get("ngpus")) or 0)
    measurements = []
    for row in _rows(data, "results"):
        size = _whole(row.get("size"))
        for key, how in (("out_of_place", "out-of-place"), ("in_place", "in-place")):
            half = row.get(key)
            if not size or not isinstance(half, dict):
                continue
            algbw, busbw = _real(half.get("alg_bw")), _real(half.get("bus_bw"))
            time_us = _real(half.get("time", half.get("cpu_time")))
            if algbw is None or busbw is None or time_us is None:
                continue
            measurements.append(
                Measurement(
                    name, ranks, size, algbw, busbw, time_us, how, bool(_real(half.get("nwrong")))
                )
            )
    version = _whole(data.get("nccl_version"))
    return _whole_reading(
        Reading(
            where,
            "nccl-tests' JSON",
            f"NCCL {read_version(version)}" if version else None,
            tuple(measurements),
            places=places,
        )
    )


# -- topo-run
# --------------------------------------------------------------------------------------------------------


def _read_topo_run(data: Mapping[str, Any], where: str) -> Reading:
    """Return what topo-run --json printed: each size with the plan's time and the stock
    collective's.
    """
    name, ranks = name_collective(str(data.get("collective"))), _whole(data.get("ranks"))
    if name is None or not ranks:
        raise InputError(
            f"{where}: JSON with rows, but no collective and ranks; expected topo-run --json"
        )
    from ...ir.collective import Collective

    factor = float(Collective.with_default_root(name, ranks).bus_factor())
    measurements = []
    for row in _rows(data, "rows"):
        size = _whole(row.get("size_bytes"))
        for key, how in (("plan_us", "plan"), ("stock_us", "stock")):
            time_us = _real(row.get(key))
            if size and time_us:
                algbw = size / time_us * 1e-3
                wrong = bool(_whole(row.get("wrong"))) and how == "plan"
                measurements.append(
                    Measurement(name, ranks, size, algbw, algbw * factor, time_us, how, wrong)
                )
    return _whole_reading(Reading(where, "topo-run's JSON", None, tuple(measurements)))


# -- NCCL Inspector
# --------------------------------------------------------------------------------------------------


def _read_inspector(entries: list[Any], where: str) -> Reading:
    """Return what NCCL Inspector wrote, a call a line: of each collective and size the median over
    calls and ranks.
    """
    calls: dict[tuple[str, int, int], list[tuple[float, float, float]]] = {}
    other: dict[str, None] = {}
    nodes = 0
    for entry in entries[:_MOST_LINES]:
        perf, header = (
            (entry.get("coll_perf"), entry.get("header"))
            if isinstance(entry, dict)
            else (None, None)
        )
        if not isinstance(perf, dict) or not isinstance(header, dict):
            if isinstance(entry, dict) and "p2p_perf" in entry:
                other["point-to-point calls"] = None
            continue
        name, ranks = name_collective(str(perf.get("coll"))), _whole(header.get("n_ranks"))
        size, time_us = (
            _whole(perf.get("coll_msg_size_bytes")),
            _real(perf.get("coll_exec_time_us")),
        )
        algbw, busbw = _real(perf.get("coll_algobw_gbs")), _real(perf.get("coll_busbw_gbs"))
        if (
            name is None
            or not ranks
            or not size
            or time_us is None
            or algbw is None
            or busbw is None
        ):
            other[f"calls of {str(perf.get('coll'))[:30]}"] = None
            continue
        nodes = max(nodes, _whole(header.get("nnodes")) or 0)
        calls.setdefault((name, ranks, size), []).append((algbw, busbw, time_us))
    measurements = []
    for (name, ranks, size), seen in sorted(calls.items()):
        algbw, busbw, time_us = sorted(seen)[len(seen) // 2]
        if ranks > 1:
            measurements.append(
                Measurement(name, ranks, size, algbw, busbw, time_us, f"median of {len(seen)}")
            )
    notes = tuple(f"{what} are not judged" for what in other)
    return _whole_reading(
        Reading(where, "lines of NCCL Inspector", None, tuple(measurements), notes=notes)
    )


def _whole_reading(reading: Reading) -> Reading:
    """Return a reading. Raises InputError where it has no measurement."""
    if not reading.measurements:
        raise InputError(
            f"{reading.where}: {reading.kind} without a measurement that can be judged; is the "
            "file cut off?"
        )
    return reading
