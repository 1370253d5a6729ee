"""Results in JSON: nccl-tests' (-J), topo-run's, and the lines of NCCL Inspector."""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from .....topo.errors import InputError
from .....topo.exact import load_json
from ....ir.collective import Collective
from ..file_contents import FileContents, Location, Measurement
from .log_lines import name_collective
from .table_words import read_bus, read_version

# Most lines of NCCL Inspector, one per call and rank: these fit into memory as objects.
_MAX_LINES = 2_000_000
# Most ranks: larger numbers are damage.
_MAX_RANKS = 1 << 16
# Largest integer up to which JSON numbers are exact.
_MAX_INTEGER = 1 << 53
# Keys under which Docker, Kubernetes and cloud loggers keep a line of output.
_WRAPPERS = ("log", "message", "msg", "textPayload")
# The output of a command on one line, as Ansible prints what a host returned.
_RETURNED = re.compile(r'"(?:\w{1,40}\.)?stdout": ?("[^"\\]*(?:\\.[^"\\]*)*")')
# Fewest ends of lines in it.
_MIN_LINES = 3


def read_json(text: str, where: str) -> FileContents:
    """Return the contents of a JSON text.

    Raise InputError if its kind is unknown or it is cut off.
    """
    return _check_measured(_read_any(text, where))


def _check_measured(contents: FileContents) -> FileContents:
    if not contents.measurements:
        raise InputError(
            f"{contents.where}: {contents.kind} without a measurement that can be judged; is the "
            "file cut off?"
        )
    return contents


def _read_any(text: str, where: str) -> FileContents:
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].lstrip().startswith("{") and _parse(lines[0]) is not None:
        entries = [_load(line, where, number) for number, line in enumerate(lines, 1)]
        return _read_inspector(entries, where)
    data = _load(text, where)
    entries = data if isinstance(data, list) else [data]
    if entries and all(isinstance(x, dict) and "coll_perf" in x for x in entries):
        return _read_inspector(entries, where)
    if not isinstance(data, dict):
        raise InputError(
            f"{where}: JSON that is no result; expected nccl-tests' -J, topo-run's JSON or NCCL "
            "Inspector's"
        )
    if isinstance(data.get("results"), list):
        return _read_nccl_tests(data, where)
    if isinstance(data.get("runs"), list):
        runs = [_check_measured(_read_topo_run(run, where)) for run in _rows(data, "runs")]
        listed = tuple(m for run in runs for m in run.measurements)
        groups = {run.group for run in runs}
        if len(groups) > 1:
            raise InputError(f"{where}: runs of different groups; give the runs of one group")
        helpers = sorted({helper for run in runs for helper in run.helpers})
        return FileContents(
            where,
            "topo-run's JSON",
            measurements=listed,
            group=groups.pop() if groups else (),
            helpers=tuple(helpers),
        )
    if isinstance(data.get("rows"), list):
        return _read_topo_run(data, where)
    if data.get("format") == "topoplan-plan":
        raise InputError(
            f"{where}: a plan, which says what could be; give topo-run's JSON of it, which says "
            "what is"
        )
    if data.get("format") == "topoplan-topology" or "devices" in data:
        raise InputError(
            f"{where}: a topology, not a result; name it as the topology, and give here a log, a "
            "graph dump or a table",
            parameter="topology",
        )
    keys = ", ".join(list(map(str, data))[:5])[:80]
    raise InputError(
        f"{where}: JSON with {keys or 'nothing'}; expected nccl-tests' -J (results), topo-run's "
        "JSON (rows) or NCCL Inspector's lines (coll_perf)"
    )


def unwrap_log(text: str) -> str | None:
    """Return the text inside a container's log; None for any other text.

    Each line of such a log is a JSON object that holds one line of output.
    """
    out: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        entry = _parse(line)
        if entry is None and out:
            continue  # a line that the logger broke
        values = [entry.get(key) for key in _WRAPPERS] if isinstance(entry, dict) else []
        inside = next((value for value in values if isinstance(value, str)), None)
        if inside is None:
            return None
        out.append(inside.rstrip("\n"))
    return "\n".join(out) if out else None


def unwrap_returned(text: str) -> str | None:
    """Return the outputs of commands that a text has as strings of JSON; None if it has none.

    The list of lines that Ansible prints beside each is the same output.
    """
    found = [match[1] for match in _RETURNED.finditer(text) if match[1].count(r"\n") >= _MIN_LINES]
    outputs = [output for string in found if isinstance(output := _parse(string), str)]
    return "\n".join(outputs) if outputs else None


def _load(text: str, where: str, line: int | None = None) -> Any:
    try:
        return load_json(text, exact=False)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}, line {line or error.lineno}: not whole JSON: {error.msg}; is the file cut "
            "off?"
        ) from None
    except ValueError as error:
        raise InputError(f"{where}: not usable JSON: {error}") from None


def _parse(line: str) -> Any:
    """Return the value of a JSON line; None if it is not JSON (or null)."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _real(value: object) -> float | None:
    """Return a finite number that is not negative; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= sys.float_info.max else None


def _reals(algbw: object, busbw: object, time_us: object) -> tuple[float, float, float] | None:
    a, b, c = _real(algbw), _real(busbw), _real(time_us)
    return None if a is None or b is None or c is None else (a, b, c)


def _whole(value: object) -> int | None:
    """Return an integer from 0 to 2**53; None for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < _MAX_INTEGER else None


def _rows(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    listed = data.get(key)
    return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []


def _read_nccl_tests(data: Mapping[str, Any], where: str) -> FileContents:
    arguments = data.get("args")
    test = str(arguments[0]).rsplit("/", 1)[-1] if isinstance(arguments, list) and arguments else ""
    name = name_collective(test)
    if name is None:
        raise InputError(
            f"{where}: results of {test or 'an unnamed test'}, for which there is no bound; give "
            "those of all_reduce_perf or another collective"
        )
    locations = {}
    for device in _rows(data, "devices"):
        rank, host = _whole(device.get("rank")), device.get("hostname")
        if rank is not None and rank < _MAX_RANKS:
            locations[rank] = Location(
                host if isinstance(host, str) else None,
                _whole(device.get("device")),
                read_bus(str(device.get("device_hex"))),
                model=str(device.get("device_info") or "") or None,
            )
    ranks, config = max(locations, default=-1) + 1, data.get("config")
    if not ranks and isinstance(config, dict):
        ranks = _whole(config.get("ngpus")) or 0
    measurements = []
    for row in _rows(data, "results"):
        for how in ("out-of-place", "in-place"):
            size, half = _whole(row.get("size")), row.get(how.replace("-", "_"))
            if not size or not isinstance(half, dict):
                continue
            figures = _reals(
                half.get("alg_bw"), half.get("bus_bw"), half.get("time", half.get("cpu_time"))
            )
            if figures is not None:
                wrong = bool(_real(half.get("nwrong")))
                measurements.append(Measurement(name, ranks, size, *figures, how, wrong))
    version = _whole(data.get("nccl_version"))
    library = f"NCCL {read_version(version)}" if version else None
    return FileContents(
        where, "nccl-tests' JSON", library, tuple(measurements), locations=locations
    )


def _read_topo_run(data: Mapping[str, Any], where: str) -> FileContents:
    """Return topo-run's results: for each size the times of the plan and the stock collective."""
    name, ranks = name_collective(str(data.get("collective"))), _whole(data.get("ranks"))
    if name is None or not ranks:
        raise InputError(
            f"{where}: JSON with rows, but no collective and ranks; expected topo-run's JSON"
        )
    factor = float(Collective.with_default_root(name, ranks).bus_factor())
    measurements = []
    for row in _rows(data, "rows"):
        size = _whole(row.get("size_bytes"))
        for how in ("plan", "stock"):
            time_us = _real(row.get(f"{how}_us"))
            if size and time_us:
                algbw = size / time_us * 1e-3
                wrong = how == "plan" and bool(_whole(row.get("wrong")))
                measurements.append(
                    Measurement(name, ranks, size, algbw, algbw * factor, time_us, how, wrong)
                )
    group, helpers = (_read_ranks(data, key, where) for key in ("group", "helpers"))
    if group and len(group) != ranks:
        raise InputError(f"{where}: a group of {len(group)} GPUs and {ranks} ranks; is it damaged?")
    return FileContents(
        where, "topo-run's JSON", None, tuple(measurements), group=group, helpers=helpers
    )


def _read_ranks(data: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    """Return the GPUs that a result lists, none if it does not."""
    listed = data.get(key) or []
    ranks = [_whole(rank) for rank in listed] if isinstance(listed, list) else [None]
    known = tuple(rank for rank in ranks if rank is not None and rank < _MAX_RANKS)
    if len(known) < len(ranks) or known != tuple(sorted(set(known))):
        raise InputError(f"{where}: {key}: expected different ranks, ascending")
    return known


def _read_inspector(entries: list[Any], where: str) -> FileContents:
    """Return the results of NCCL Inspector, of which each entry is one call.

    There is one per collective and size: the median over calls and ranks.
    """
    calls: dict[tuple[str, int, int], list[tuple[float, float, float]]] = defaultdict(list)
    others: dict[str, None] = {}
    for entry in entries[:_MAX_LINES]:
        call = entry if isinstance(entry, dict) else {}
        perf, header = call.get("coll_perf"), call.get("header")
        if not isinstance(perf, dict) or not isinstance(header, dict):
            if "p2p_perf" in call:
                others["point-to-point calls"] = None
            continue
        name, ranks = name_collective(str(perf.get("coll"))), _whole(header.get("n_ranks"))
        size = _whole(perf.get("coll_msg_size_bytes"))
        figures = _reals(*map(perf.get, ("coll_algobw_gbs", "coll_busbw_gbs", "coll_exec_time_us")))
        if name and ranks and size and figures is not None:
            calls[name, ranks, size].append(figures)
        else:
            others[f"calls of {str(perf.get('coll'))[:30]}"] = None
    measurements = []
    for (name, ranks, size), rates in sorted(calls.items()):
        if ranks > 1:
            median, how = sorted(rates)[len(rates) // 2], f"median of {len(rates)}"
            measurements.append(Measurement(name, ranks, size, *median, how))
    return FileContents(
        where,
        "lines of NCCL Inspector",
        measurements=tuple(measurements),
        notes=tuple(f"{what} are not judged" for what in others),
    )
