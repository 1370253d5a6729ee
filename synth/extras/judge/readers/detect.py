"""Recognition of a text's format by its content; unsupported formats are refused by name."""

import re
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

from .....topo import files
from .....topo.answers import cut_text
from .....topo.errors import InputError
from .....topo.extras.measured import pair_rates
from .....topo.extras.nccl_log import reader as nccl_log
from .....topo.formats.detect import read_topology_text
from .....topo.formats.pasted import find_xml
from .....topo.graph import Topology
from ..file_contents import (
    HAS_RESULTS,
    BenchmarkResults,
    FileContents,
    FileFinding,
    NothingToJudgeError,
)
from .benchmarks import find_benchmark
from .left_out import describe_left_out
from .log_lines import Signatures, is_of_log
from .nccl_log import LogReader
from .tests_table import TableReader

# Largest file, a day's log of a large job: it is read into memory as a whole.
MAX_FILE_BYTES = 512 * 2**20
STANDARD_INPUT = "-"
# Characters at the start of a text from which its format is recognized.
_SNIFF_CHARACTERS = 64 * 2**10
# Characters of the outermost element that identify the kind of XML.
_ROOT_CHARACTERS = 200
# Longest line, in characters, of a message; patterns would take quadratic time on longer ones.
_MAX_LINE = 20_000
# Longest number, in digits: Python refuses to read one of more than 4,300, which only damage makes.
_MAX_DIGITS = 4_000
_LONG_NUMBER = re.compile(rf"\d{{{_MAX_DIGITS},}}")
# The end of errors about unknown texts.
_EXPECTED = (
    "expected NCCL's graph dump (NCCL_GRAPH_DUMP_FILE), a log with NCCL_DEBUG=INFO, a table or "
    "JSON of nccl-tests or rccl-tests, a table of OSU's benchmarks or all_reduce_bench.py, "
    "topo-run's JSON, or lines of NCCL Inspector"
)
_BEFORE_THE_ROOT = re.compile(r"\s*(?:<\?.*?\?>\s*|<!--.*?-->\s*)*", re.DOTALL)
# Findings on the network, which a run on one host does not use.
_BETWEEN_HOSTS = ("no-gdr", "network-socket")
# What mpirun, srun and torchrun say of a process that failed.
_ABORTED = re.compile(
    r"^.{0,80}(?:one or more processes exited with non-zero status|a process .{0,60}aborted"
    r"|returned\s+a\s+non-zero exit code|srun: error: .{1,80}: Exited with exit code [1-9]"
    r"|exited on signal \d|ChildFailedError|the job has been aborted)",
    re.MULTILINE,
)
# The average that a test prints which measured nothing.
_NO_AVERAGE = re.compile(r"# *Avg bus bandwidth +: +-?(?:0(?:\.0*)?|nan)\s*$", re.MULTILINE)
# Longest error to quote, in characters.
_MAX_ERROR = 200
# How programs, the system and job managers say what ended a program, in a line of their own.
_ERROR = re.compile(
    r"^[^\n]{0,120}(?:\b(?:error|fatal|abort(?:ed|ing)?|fail(?:ed|ure)?|killed|cancell?ed|exception"
    r"|segmentation fault|signal|timed? ?out|denied|refused|no such file|not found|cannot"
    r"|could not|unable to|invalid)\b|terminate called|What\(\):)[^\n]{0,200}$",
    re.MULTILINE | re.IGNORECASE,
)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# A line in a list of lines, as Ansible prints them, and the end of a line in HTML.
_QUOTED = re.compile(r'^\s*"(.*)",?\s*$')
_LINE_BREAK = re.compile(r"<br ?/?>\s*$")
# A command above results is theirs; one below them can be that of the next run.
_BELOW = ", in a command below the results, which may be of another run"
_OTHERS = {
    r"^[ \t]*GPU\d+(?:[ \t]+\S+)*[ \t]+X\b|NVIDIA-SMI \d|^Legend:|^GPU \d+: .*UUID": "nvidia-smi's "
    "output, which says what the machine is; name it as the topology (topo -m), and give here "
    "what runs on it",
    r"=+ ROCm System Management|ROCm SMI|amd-smi|Link Type between": "rocm-smi's or amd-smi's "
    "output, which says what the machine is; give here what runs on it",
    r"Peer access from .{1,200} : (?:Yes|No)\b|\bDevice=\d+ CAN(?:NOT)? Access Peer ": (
        "what CUDA's samples say of P2P, without what ran; give it beside a table of nccl-tests or "
        "a log"
    ),
    r"^nccl_\w+\{|^# (?:HELP|TYPE) ": "Prometheus metrics; give NCCL Inspector's JSON lines",
    r"^[ \t]*Comm\. Op[ \t]+Message Size|\bcomm op: [^\n]{0,200}\| msg size:": (
        "DeepSpeed's summary of communication, which does not state the ranks and whose times "
        "include waiting for them; give a table of nccl-tests"
    ),
    r"^[ \t]*Collective:[ \t]+\w+[ \t]*\n[^\n]*Memory type:": (
        "ucc_perftest's output, which does not state the number of ranks; give a table of "
        "nccl-tests"
    ),
    r"\bnccl(?:Dev)?Kernel_\w": (
        "a profile of kernels, whose times include waiting for other ranks; give a table of "
        "nccl-tests"
    ),
    r"\bbusbw(?:_avg)?\b[^\n]{0,20}\bG(?:bps|B/s)": (
        "a script's rates without sizes and ranks in a form that is read; give a table of "
        "nccl-tests, or all of all_reduce_bench.py's output"
    ),
    r"busbw[^\n]{0,200},|,\s{0,9}algbw|^\W{0,9}size\b[^\n]{0,200}\bbusbw\b": (
        "a table in another form than nccl-tests'; give what the test printed, or its -J file"
    ),
    r"\bib_(?:write|read|send)_bw\b|#bytes\s+#iterations": "perftest's output, of one link; give a "
    "collective's",
}


def read_file(name: str, collective: str | None = None) -> FileContents:
    """Return the contents of a file; `-` is standard input.

    If `collective` is given, a table of other collectives is refused. Raise InputError if the file
    cannot be read or its format is unknown.
    """
    if not name:
        raise InputError("the name of a file is empty; name a file, or - for standard input")
    try:
        if name == STANDARD_INPUT:
            raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            raw = files.read_file(name, MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise InputError(f"{name[:80]!r}: not the name of a file") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(
            f"{name}: larger than {MAX_FILE_BYTES >> 20} MiB; give the part with the start of the "
            "job"
        )
    # Windows shells write UTF-16.
    code = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    if code == "utf-8-sig" and b"\0" in raw[:_SNIFF_CHARACTERS]:
        raise InputError(f"{name}: not a text; {_EXPECTED}")
    return read_text(raw.decode(code, errors="replace"), name, collective)


def read_text(text: str, where: str, collective: str | None = None) -> FileContents:
    """Return the contents of a text, which errors call `where`.

    `collective` is as for `read_file`, and errors are the same: NothingToJudgeError for a text
    without anything to compare with a bound, InputError if its tables are of other collectives than
    that.
    """
    try:
        contents = replace(_read_any(text, where, collective), text=cut_text(text))
    except InputError as error:
        raise NothingToJudgeError(error, cut_text(text)) from None
    measured = sorted({m.collective for m in contents.measurements})
    if collective is not None and measured and collective not in measured:
        raise InputError(
            f"{where}: a table of {', '.join(measured)}, and {collective} was asked for; give that "
            f"table, or ask for {measured[0]}",
            parameter="collective",
        )
    return contents


def _read_any(text: str, where: str, collective: str | None) -> FileContents:
    if "&gt;" in text:  # copied from a page's source
        text = unescape(text)
    if 'stdout": "' in text:
        from .json_results import unwrap_returned

        text = unwrap_returned(text) or text
    skipped = _BEFORE_THE_ROOT.match(text[:_SNIFF_CHARACTERS])
    start = text[skipped.end() if skipped else 0 :][:_ROOT_CHARACTERS]
    if not start.strip():
        piped = "standard input is empty: the command before | printed nothing"
        empty = piped if where == STANDARD_INPUT else f"{where}: the file is empty"
        raise InputError(f"{empty}; {_EXPECTED}")
    if start.startswith("<graphs") and text.rstrip().endswith(">"):
        from .graph_dump import read_graph_dump

        return read_graph_dump(text, where)
    if HAS_RESULTS.search(text) is None:
        contents = _read_pasted_xml(text, where)
        if contents is not None:
            return contents
    if start.startswith("<") and HAS_RESULTS.search(text) is None:
        raise InputError(
            f"{where}: XML that is no graph dump (it starts with {start[:30]!r}); {_EXPECTED}"
        )
    if re.match(r"\{|\[\s*\{", start):
        from .json_results import read_json, unwrap_log

        if '"nvbandwidth"' in text and (rates := pair_rates.describe(text)) is not None:
            raise InputError(f"{where}: {rates}; give here a collective's")
        inside = unwrap_log(text)
        if inside is None:
            return read_json(text, where)
        text = inside
    return _read_lines(text, where, collective)


def _read_pasted_xml(text: str, where: str) -> FileContents | None:
    """Return the graph dump in a text, with the topology beside it; None without XML.

    Raise InputError for a topology alone.
    """
    is_json = text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[")
    dump = None if is_json else find_xml(text, "graphs")
    if dump is not None:
        from .graph_dump import read_graph_dump

        machine, source = _read_machine(text, where)
        contents = read_graph_dump(dump.text, where)
        return replace(contents, machine=machine, machine_source=source)
    if not is_json and find_xml(text, "system", "topology") is not None:
        raise InputError(
            f"{where}: a topology, which says what the machine is; name it as the topology, and "
            "give here a graph dump",
            parameter="topology",
        )
    return None


def _split_lines(text: str) -> list[str]:
    """Return the lines of a text, without colors and what a list of lines puts around each."""
    lines = _ANSI.sub("", text).splitlines()
    if '"' not in text and "<br" not in text:
        return lines
    return [_LINE_BREAK.sub("", _QUOTED.sub(r"\1", line)) for line in lines]


def _read_lines(text: str, where: str, collective: str | None) -> FileContents:
    signatures = Signatures()
    log, table = LogReader(signatures), TableReader(signatures)
    lines = _split_lines(text)
    for count, line in enumerate(lines, 1):
        line = line[:_MAX_LINE].replace("\t", "    ").replace("\xa0", " ")
        if len(line) > _MAX_DIGITS and _LONG_NUMBER.search(line):
            raise InputError(
                f"{where}, line {count}: a number of more than {_MAX_DIGITS} digits; the file is "
                "damaged there: leave the line out"
            )
        if "opCount" in line or " nranks " in line:
            table.take_calls(line)
        is_message = signatures.is_message(line)
        log.take(line, count)
        if not is_message:
            table.take(line, count)
    measurements = table.finish(collective, Path(where).name)
    last_row = max((row.line for row in table.rows), default=len(lines))
    for name, value, number in table.variables:
        log.take_variable(name, value, number, _BELOW if number > last_row else "")
    benchmark, locations, notes = (
        find_benchmark(text),
        table.locations,
        describe_left_out(table.left_out),
    )
    if benchmark is not None:
        plain = [line[:_MAX_LINE].replace("\xa0", " ") for line in lines]
        try:
            results = benchmark.read(plain, where)
        except InputError as error:
            if not measurements:
                raise
            results = BenchmarkResults((), notes=(str(error).removeprefix(f"{where}, "),))
        measurements += results.measurements
        locations = locations or dict(results.locations)
        notes += results.notes
    locations = locations or log.locations.find()
    if not measurements and not log.says_something:
        raise InputError(f"{where}{_explain(text, log, table)}")
    contents = log.collect_contents(where, bool(measurements))
    test = benchmark.name if benchmark is not None and not table.rows else table.kind
    kinds = [f"table of {test or 'nccl-tests'}"] if measurements else []
    kinds += [contents.kind] if log.says_something else []
    findings = (*contents.findings, *table.findings)
    hosts = {location.host for location in locations.values()} - {None}
    if log.is_on_one_host and len(hosts) < 2:
        findings = tuple(f for f in findings if f.name not in _BETWEEN_HOSTS)
    if any(m.wrong for m in measurements):
        findings += (
            FileFinding(
                "wrong-results",
                "some results were wrong (#wrong is not 0)",
                "mend that before speed: a link, a driver or the library is at fault",
            ),
        )
    if table.header_line and not (measurements or table.others):
        notes.append(_explain_table(table, text).removeprefix(", "))
    if measurements and (rates := pair_rates.describe(text)) is not None:
        notes.append(f"the text also has {rates}; left out here")
    machine, source = _read_machine(text, where)
    return FileContents(
        where,
        " with a ".join(kinds),
        contents.library or table.library,
        measurements,
        contents.communicators,
        contents.picks,
        locations,
        findings,
        (
            *contents.notes,
            *notes,
            *(
                f"line {number}: rows of {test}, which has no bound here, are left out"
                for test, number in table.others.items()
            ),
        ),
        contents.topology_files,
        machine=machine,
        machine_source=source,
    )


def _read_machine(text: str, where: str) -> tuple[Topology | None, str]:
    """Return the machine that a text has, and in which form; None if it has none.

    One that a log prints may be cut before its GPUs, and then is none, as is XML without its end.
    """
    try:
        if nccl_log.looks_like(text):
            return nccl_log.read(text, where), "NCCL's graph, in the log"
        pasted = find_xml(text, "system", "topology")
        if pasted is not None and pasted.is_whole:
            return read_topology_text(pasted.text, where), "the topology in the file"
    except InputError:
        pass
    return None, ""


def _explain(text: str, log: LogReader, table: TableReader) -> str:
    """Return the rest of the error for a text with nothing to judge.

    It names the line at fault, if one is, what the text is, and what to give instead.
    """
    if table.others:
        test, line = next(iter(table.others.items()))
        return f", line {line}: a table of {test}, which has no bound here; give a collective's"
    if (failed := _explain_failure(log)) is not None:
        return failed
    if table.header_line or table.neuron_line or table.has_ended:
        return _explain_table(table, text)
    if log.is_log or nccl_log.looks_like(text):
        return _explain_log(text, log)
    if (rates := pair_rates.describe(text)) is not None:
        return f": {rates}; give here a collective's"
    for pattern, what in _OTHERS.items():
        if re.search(pattern, text[:_SNIFF_CHARACTERS], re.MULTILINE | re.IGNORECASE):
            return f": {what}"
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    what = (
        "a text that mentions NCCL, without a result of a test or a line of its log (NCCL INFO)"
        if log.lines
        else f"not a format that is known (it starts with {first[:40]!r})"
    )
    return f": {what}; {_EXPECTED}"


def _explain_table(table: TableReader, text: str) -> str:
    """Return the rest of the error for a table without a row that is read."""
    if table.neuron_line:
        return (
            f", line {table.neuron_line}: a table of nccom-test, which runs on AWS Neuron's "
            "accelerators and not on GPUs; give one of nccl-tests"
        )
    what = f"a table of {table.kind or 'nccl-tests'}"
    if table.left_out:
        line, why = table.left_out[0]
        return f", line {line}: {what} without a whole row: {why}; give the rows as printed"
    if table.odd_line:
        return (
            f", line {table.odd_line}: a row in another form than nccl-tests'; give the rows as "
            "the test printed them (size, count, type ... algbw, busbw)"
        )
    if not table.header_line:
        return (
            ": the average of a table's rates alone (Avg bus bandwidth), which mixes small sizes "
            "with large ones; give the rows"
        )
    return f", line {table.header_line}: {what} without a row{_explain_rowless(table, text)}"


def _explain_rowless(table: TableReader, text: str) -> str:
    """Return why a table below a header has no row, as far as the text shows it."""
    if (error := _find_error(text, table.header_line)) is not None:
        line, said = error
        return (
            f": nothing was measured; line {line} below it says {said!r}: if that ended the "
            "test, mend it first"
        )
    if (ended := _ABORTED.search(text)) is not None:
        line = text.count("\n", 0, ended.start()) + 1
        return f": the launcher says that a process failed (line {line}); mend that first"
    if table.has_ended and _NO_AVERAGE.search(text) is not None:
        return (
            ": the test ended without a size that it measured (its average is 0); see whether "
            "its least size (-b) exceeds the largest (-e), or the memory of the GPUs"
        )
    if table.has_ended:
        return ", though the test ended: its rows are left out, or in a file; give them, too"
    return ": it is cut, or the test had not begun; give the whole output"


def _find_error(text: str, header_line: int) -> tuple[int, str] | None:
    """Return the first line below a header that says what ended the test, and its number."""
    for number, line in enumerate(text.split("\n"), 1):
        # Comments: "# Out of bounds values : 0 OK", and a header, whose column "error" is none,
        # without its mark. What launchers say of it is less, and the library's warnings are
        # errors where a call fails, which `Failure` tells.
        is_other = (
            line.lstrip().startswith("#")
            or "algbw" in line
            or "warning" in line.lower()
            or _ABORTED.match(line) is not None
            or is_of_log(line)
        )
        if number > header_line and not is_other and _ERROR.match(line[:_MAX_ERROR]):
            return number, " ".join(line.split())[:_MAX_ERROR]
    return None


def _explain_failure(log: LogReader) -> str | None:
    """Return the rest of the error for a run that failed or did not end; None for others."""
    if log.failure is not None:
        line, said = log.failure
        what = log.what_failed
        return f": {what}: line {line}: {said}; mend that first, as nothing was measured"
    stuck = log.findings.get("timed-out") or log.findings.get("p2p-refused-cuda")
    if stuck is None:
        return None
    return f", line {stuck.line}: {stuck.message}, and nothing was measured; {stuck.advice}"


def _explain_log(text: str, log: LogReader) -> str:
    """Return the rest of the error for a log of NCCL with nothing to judge."""
    if log.lines and any(draft.started or draft.ranks for _, draft in log.drafts):
        return (
            f", line {log.last_line}: the log is cut: it ends before rings and trees are listed; "
            "give the whole log of the start (NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING)"
        )
    if nccl_log.looks_like(text):
        return (
            ": NCCL's graph alone, which says what the machine is; name it as the topology, and "
            "give here a table or the whole log"
        )
    fabrics = f" ({said})" if (said := log.describe_fabrics()) else ""
    warned = log.findings.get("warning-1")
    warning = f"; line {warned.line}: {warned.message}" if warned is not None else ""
    return (
        f": an NCCL log without the lines of INIT and GRAPH (no rings or trees){fabrics}{warning}; "
        "run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING and give the whole log"
    )
