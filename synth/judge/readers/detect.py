"""Tell which of the formats a text is in, from the text itself, and read it; what is another is
refused by its name.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ....topo.errors import InputError
from ..found import Finding, Reading
from .log_lines import Signatures
from .nccl_log import LogReader
from .tests_table import TableReader

MAX_FILE_BYTES = 512 * 2**20
STANDARD_INPUT = "-"
_SNIFF_CHARACTERS = 64 * 2**10
_EXPECTED = (
    "expected NCCL's graph dump (NCCL_GRAPH_DUMP_FILE), a log with NCCL_DEBUG=INFO, a table or "
    "JSON of nccl-tests or "
    "rccl-tests, topo-run --json, or lines of NCCL Inspector"
)
_LOG_WANTED = "run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING and give the whole log"
_BEFORE_THE_ROOT = re.compile(r"\s*(?:<\?.*?\?>\s*|<!--.*?-->\s*)*", re.DOTALL)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_OTHERS = tuple(
    (re.compile(pattern, re.MULTILINE | re.IGNORECASE), what)
    for pattern, what in (
        (
            r"^[ \t]*GPU\d+(?:[ \t]+\S+)*[ \t]+X\b|NVIDIA-SMI \d|^Legend:|^GPU \d+: .*UUID",
            "nvidia-smi's output, which says what the machine is; give it by --topology (topo "
            "-m), and here what runs on it",
        ),
        (
            r"=+ ROCm System Management|ROCm SMI|amd-smi|Link Type between",
            "rocm-smi's or amd-smi's output, which says what the machine is; give here what runs "
            "on it",
        ),
        (r"^nccl_\w+\{|^# (?:HELP|TYPE) ", "Prometheus metrics; give NCCL Inspector's JSON lines"),
        (
            r"busbw[^\n]{0,200},|,\s{0,9}algbw",
            "a table that is no nccl-tests text; give what the test printed, or its -J file",
        ),
        (
            r"\bib_(?:write|read|send)_bw\b|#bytes\s+#iterations",
            "perftest's output, of one link; give a collective's",
        ),
        (
            r"P2P Connectivity Matrix|Bandwidth Matrix|memcpy CE",
            "bandwidths between pairs of GPUs; topo-probe --measure takes those; give here a "
            "collective's",
        ),
    )
)


def read_file(name: str, collective: str | None = None) -> Reading:
    """Return what a file says. Raises InputError where it cannot be read, or is none of the
    formats.

    `collective` is the one that was asked for; a table of others is refused.
    """
    if not name:
        raise InputError("the name of a file is empty; name a file, or - for standard input")
    try:
        if name == STANDARD_INPUT:
            raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise InputError(f"{name[:80]!r}: not the name of a file") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(
            f"{name}: larger than {MAX_FILE_BYTES >> 20} MiB; give the part with the start of the "
            "job"
        )
    return read_text(_decode(raw, name), name, collective)


def _decode(raw: bytes, where: str) -> str:
    """Return the text of bytes in UTF-8, or in UTF-16 as Windows shells write it; InputError where
    they are no text.
    """
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw.decode("utf-16", errors="replace")
    if b"\0" in raw[:_SNIFF_CHARACTERS]:
        raise InputError(f"{where}: not a text; {_EXPECTED}")
    return raw.decode("utf-8-sig", errors="replace")


def read_text(text: str, where: str, collective: str | None = None) -> Reading:
    """Return what a text says; `where` names it in errors. Raises InputError as read_file does."""
    if "&gt;" in text:  # copied out of a page's source
        text = (
            text.replace("&gt;", ">")
            .replace("&lt;", "<")
            .replace("&quot;", '"')
            .replace("&amp;", "&")
        )
    skipped = _BEFORE_THE_ROOT.match(text[:_SNIFF_CHARACTERS])
    start = text[skipped.end() if skipped else 0 :][:200]
    if not start.strip():
        if where == STANDARD_INPUT:
            raise InputError(
                f"standard input is empty: the command before | printed nothing; {_EXPECTED}"
            )
        raise InputError(f"{where}: the file is empty; {_EXPECTED}")
    if start.startswith("<graphs"):
        from .graph_dump import read_graph_dump

        return _check_collective(read_graph_dump(text, where), collective)
    if start.startswith(("<system", "<topology", "<!DOCTYPE topology")):
        raise InputError(
            f"{where}: a topology, which says what the machine is; give it by --topology, and "
            "here a graph dump"
        )
    if start.startswith("<"):
        raise InputError(
            f"{where}: XML that is no graph dump (it starts with {start[:30]!r}); {_EXPECTED}"
        )
    if re.match(r"\{|\[\s*\{", start):
        from .json_results import read_json, unwrap_log

        inside = unwrap_log(text)
        if inside is not None:
            return _check_collective(_read_lines(inside, where, collective), collective)
        return _check_collective(read_json(text, where), collective)
    return _check_collective(_read_lines(text, where, collective), collective)


def _read_lines(text: str, where: str, collective: str | None) -> Reading:
    """Return what a log, a table, or a log with a table in it says."""
    signatures = Signatures()
    log, table = LogReader(signatures), TableReader(signatures)
    if "\x1b[" in text:
        text = _ANSI.sub("", text)
    count = 0
    for count, line in enumerate(text.splitlines(), 1):
        line = line[:20_000].replace("\t", "    ").replace("\xa0", " ")
        is_message = signatures.is_message(line)
        log.take(line, count)
        if not is_message:
            table.take(line, count)
    measurements = table.finish(collective, where)
    if not measurements and not log.says_something:
        raise _refuse(text, where, count, log, table)
    reading = log.reading(where)
    kinds = [
        *([table.kind or "nccl-tests"] if measurements else []),
        *([reading.kind] if log.says_something else []),
    ]
    notes = [*reading.notes, *table.notes[:3]]
    for other, line_number in table.others.items():
        notes.append(
            f"line {line_number}: rows of {other} are no collective with a bound here, and are "
            "left out"
        )
    findings = list(reading.findings)
    if any(m.wrong for m in measurements):
        findings.append(
            Finding(
                "wrong-results",
                "some results were wrong (#wrong is not 0)",
                "mend that before speed: a link or a driver is at fault",
            )
        )
    return Reading(
        where,
        " with a ".join([f"table of {kinds[0]}" if measurements else kinds[0], *kinds[1:]]),
        reading.library or table.library,
        measurements,
        reading.communicators,
        reading.picks,
        table.places,
        tuple(findings),
        tuple(notes),
        reading.topology_files,
    )


def _refuse(text: str, where: str, count: int, log: LogReader, table: TableReader) -> InputError:
    """Return the error for a text from which nothing could be read: what it is, and what to give
    instead.
    """
    if table.others:
        other, line = next(iter(table.others.items()))
        return InputError(
            f"{where}, line {line}: a table of {other}, which has no bound here; give that of a "
            "collective"
        )
    if table.header_line:
        return InputError(
            f"{where}, line {count}: a table of {table.kind or 'nccl-tests'} without a row: it is "
            "cut, or the test had not "
            "begun; give the whole output"
        )
    if log.lines:
        started = any(draft.started or draft.ranks for _, draft in log.drafts)
        if started:
            return InputError(
                f"{where}, line {log.last_line}: the log is cut: it ends before rings and trees "
                "are listed; give the whole "
                "log of the start (NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING)"
            )
        return InputError(
            f"{where}: an NCCL log without the lines of INIT and GRAPH (no rings or trees); "
            f"{_LOG_WANTED}"
        )
    for pattern, what in _OTHERS:
        if pattern.search(text[:_SNIFF_CHARACTERS]):
            return InputError(f"{where}: {what}")
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return InputError(
        f"{where}: not a format that is understood (it starts with {first[:40]!r}); {_EXPECTED}"
    )


def _check_collective(reading: Reading, collective: str | None) -> Reading:
    """Return a reading. Raises InputError where all that it measured is another collective than was
    asked for.
    """
    if collective is None or not reading.measurements:
        return reading
    found = sorted({m.collective for m in reading.measurements})
    if collective not in found:
        raise InputError(
            f"{reading.where}: a table of {', '.join(found)}, and {collective} was asked for; "
            "give that table, or ask for "
            f"--collective {found[0]}"
        )
    return reading
