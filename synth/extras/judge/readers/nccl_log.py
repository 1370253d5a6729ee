"""Logs of NCCL_DEBUG=INFO by NCCL and RCCL, from many interleaved ranks and with any prefixes.

On each rank one thread makes a communicator. The lines of a thread from one initialization to the
next are a draft. Drafts of one communicator are joined by its id if the library prints one (2.18
and later), else by how many communicators of that many ranks the thread had made before; several
processes of one rank are then of several runs.
"""

import re
from collections import Counter, defaultdict
from itertools import chain

from .....topo.derived.fabric_health import FABRIC_STATES, HEALTHY, describe_health
from .....topo.errors import InputError
from ..file_contents import (
    FileContents,
    FileFinding,
    ObservedCommunicator,
    Pick,
    SearchResult,
)
from . import log_lines as lines
from .log_drafts import RING_PATTERN, Draft, count_alike, finish, part_runs
from .log_locations import LocationCollector, read_stated_location

# Lines worth parsing. Most lines of a log are not; with this search, 50 MB take seconds.
_WORTH = re.compile(
    r"Channel| : GPU/|Ring |Trees? |Pattern \d|Init (?:START|COMPLETE)|nRanks|-> Algo|simple order"
    r"|P2P|version|set (?:by env|to)|WARN|Using network|NVLS|RDMA Disabled|Connected all|peer query"
    r"|MNNVL"
)
# Most ranks: larger numbers are damage.
_MAX_RANKS = 1 << 16
# Bounds on memory and output for logs that repeat themselves.
_MAX_PICKS = 10_000
# Most warnings to report: further ones repeat the first ones.
_MAX_WARNINGS = 3
# Most pairs of GPUs to name in a finding.
_MAX_PAIRS = 6
# What the library's own lines have: others may mention it, as a script below the log does.
_SAID = "NCCL INFO"

_LIMITING = {
    "NCCL_P2P_DISABLE": "unset it unless P2P is broken here: GPUs then send through host memory",
    "NCCL_P2P_LEVEL": "unset it, or raise it to SYS: it decides between which GPUs P2P is used",
    "NCCL_SHM_DISABLE": "unset it: ranks of one host then send over the network",
    "NCCL_MAX_NCHANNELS": "unset it: fewer channels carry less",
    "NCCL_MAX_CTAS": "unset it: fewer channels carry less",
    "NCCL_ALGO": "unset it unless measurements show it faster at every size",
    "NCCL_PROTO": "unset it unless measurements show it faster at every size",
    "NCCL_IB_DISABLE": "unset it: nodes then talk over TCP",
    "NCCL_NVLS_ENABLE": "unset it if NVSwitches can add",
    "NCCL_BUFFSIZE": "unset it unless measurements show it faster",
    "NCCL_NTHREADS": "unset it unless measurements show it faster",
}
# Findings that leave nothing to judge.
_NO_RESULT = ("warning", "variable", "network", "timed-out", "p2p-refused-")
# Variables that replace the result of the search.
_STEERING = ("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE", "NCCL_RINGS", "RCCL_TREES")


class Failure:
    """The warning that ended a start: the last before the first failing call, or at the end.

    A start is the initialization of communicators.
    """

    def __init__(self) -> None:
        self._warned: tuple[int, str] | None = None
        self._is_traced = self._is_last = False

    def take(self, line: str, number: int) -> None:
        """Parse line `number` of a log, one of the library's."""
        # The quick tests before each pattern keep large logs fast.
        is_traced = any(name in line for name in (".cc:", ".cu:", ".h:", ".cpp:"))
        if is_traced and lines.FAILED_CALL.search(line) is not None:
            self._is_traced |= self._warned is not None and self._is_last
        elif "WARN" in line and (match := lines.WARNING.search(line)) is not None:
            if not self._is_traced:
                self._warned = number, " ".join(match[0].split())[:200]
            self._is_last = True
        elif not self._is_traced and _SAID in line:
            self._is_last = False

    def find(self, has_begun: bool) -> tuple[int, str] | None:
        """Return the number of the warning's line, and its text.

        Return None if there was no warning, or no sign that the start ended with it: a failing call
        below it, or that it is the last message of a log that shows a start (`has_begun`).
        """
        return self._warned if self._is_traced or (self._is_last and has_begun) else None


class Stop:
    """The call or the test that failed after a start: with a warning of its process, if any."""

    def __init__(self) -> None:
        self.found: tuple[int, str] | None = None
        # Whether a later run began.
        self.is_past = False
        # The last warning of each process of a run, the first with a failing call below it, and
        # that at the end of what the library said.
        self._warned: dict[str, tuple[int, str]] = {}
        self._traced: tuple[int, str] | None = None
        self._last: tuple[int, str] | None = None

    def take(self, line: str, number: int, is_running: bool) -> None:
        """Parse line `number`; `is_running` is whether a communicator was complete before it."""
        if self.found is not None:
            return
        if "failure" in line and (match := lines.FAILED_TEST.search(line)) is not None:
            self.found = self._traced or self._last or (number, " ".join(match[0].split())[:200])
        elif "WARN" in line and (match := lines.WARNING.search(line)) is not None:
            self._last = number, " ".join(match[0].split())[:200]
            if is_running:
                self._warned[_find_process(line)] = self._last
        elif ".c" in line and " -> " in line and lines.FAILED_CALL.search(line) is not None:
            warned = self._warned.get(_find_process(line))
            self._traced = self._traced or warned
            if lines.FAILED_USE.search(line) is not None:
                self.found = warned
        elif _SAID in line:
            self._last = None


def _find_process(line: str) -> str:
    match = lines.PROCESS.search(line)
    return match[1] if match is not None else ""


class LogReader:
    """Collector of the facts of a log: `take` each line, then call `collect_contents`.

    `signatures` finds the writers of messages; another reader of the same lines shares it. `drafts`
    are what each thread wrote of each communicator, `picks` the tuner's choices, `findings` remarks
    by name, and `topology_files` the names of files with the machine's topology.
    """

    def __init__(self, signatures: lines.Signatures) -> None:
        self.signatures = signatures
        self.drafts: list[tuple[lines.Thread, Draft]] = []
        self._current: dict[lines.Thread, Draft] = {}
        self.picks: Counter[Pick] = Counter()
        self.library: str | None = None
        self.findings: dict[str, FileFinding] = {}
        self.topology_files: list[str] = []
        self.lines = self.last_line = 0
        self._completed = self.is_rccl = self.is_log = False
        self._refused: set[tuple[int, int]] = set()
        self._warnings: list[str] = []
        self._fabrics: dict[str, str] = {}
        # The first line after which Ray left out others.
        self._repeated = 0
        self._failure, self._stop = Failure(), Stop()
        self._completed_ranks: set[int] = set()
        self.locations = LocationCollector(signatures)

    def take(self, line: str, number: int) -> None:
        """Parse one line of the log; `number` counts lines from 1."""
        if "NCCL" in line:
            self.lines += 1
            self.is_log = self.is_log or lines.is_of_log(line)
            # RCCL ends its lines of rings and trees with comm, nRanks and busId.
            self.is_rccl |= "RCCL" in line or (" busId " in line and " nRanks " in line)
            self._failure.take(line, number)
        if "Watchdog" in line and (match := lines.TIMED_OUT.search(line)) is not None:
            self._report(
                "timed-out",
                f"a collective did not end: PyTorch's watchdog gave up {match[1]} after "
                f"{int(match[2]) / 1000:.0f} s",
                "look for a rank that failed, or that calls other collectives, then for the "
                "network between hosts",
                number,
            )
        if "peer access" in line and lines.NO_PEERS.search(line) is not None:
            self._report(
                "p2p-refused-cuda",
                "CUDA refuses peer access between two GPUs (P2P)",
                "look for GPUs that have none (GeForce cards in stock drivers), for ACS, the IOMMU "
                "and containers that hide GPUs from each other; NCCL_P2P_DISABLE=1 and the "
                "program's own switch do without",
                number,
            )
        if "CANNOT" in line and lines.CANNOT_REACH.search(line) is not None:
            self._report(
                "p2p-refused-test",
                "GPUs do not reach each other (P2P), as p2pBandwidthLatencyTest says",
                "look for GPUs that have none (GeForce cards in stock drivers), for ACS and the "
                "IOMMU; without P2P, what they send goes through the host's memory",
                number,
            )
        if "NCCL" in line or "failure" in line:
            self._stop.take(line, number, self._completed)
            if "[repeated" in line and lines.REPEATED.search(line) is not None:
                self._repeated = self._repeated or number
        if _SAID in line or "NCCL WARN" in line or not self.lines:
            self.last_line = number
        if " nranks " in line:
            self.locations.take(line)
        if _WORTH.search(line) is not None:
            for thread, level, text in self.signatures.split(line):
                self._take_message(thread, level, text, number)
                if (draft := self._current.get(thread)) is not None:
                    draft.first_line, draft.last_line = draft.first_line or number, number
                    if draft.ranks is None and (match := lines.END.search(text)) is not None:
                        draft.ranks = int(match[1])

    def _draft(self, thread: lines.Thread, anew: bool = False) -> Draft:
        """Return the draft of a thread; if `anew`, begin a draft for its next communicator."""
        if anew or thread not in self._current:
            self._current[thread] = Draft(process=thread[1] if thread else None)
            self.drafts.append((thread, self._current[thread]))
        return self._current[thread]

    def _take_message(self, thread: lines.Thread, level: str, text: str, number: int) -> None:
        host = thread[0] if thread else None
        if (match := lines.CONNECTION.search(text)) is not None:
            self._take_connection(match, self._draft(thread), host)
        elif (match := lines.RING.search(text)) is not None:
            self._take_ring(match, thread)
        elif (match := lines.TREES.search(text)) is not None:
            self._take_trees(match, thread)
        elif (match := lines.RING_HOP.search(text)) is not None:
            channel, before, rank, after = (int(x) for x in match.groups()[:4])
            # Each rank says its own hop, and that before it.
            draft = self._draft(thread)
            draft.hops.setdefault(channel, {}).update({before: rank, rank: after})
            draft.own.add(rank)
        elif (match := lines.TREE_HOP.search(text)) is not None:
            channel, parent, rank = (int(x) for x in match.groups()[:3])
            draft = self._draft(thread)
            draft.parents.setdefault(channel, {}).setdefault(rank, parent)
            draft.own.add(rank)
        elif (match := lines.INIT.search(text)) is not None:
            self._take_init(match, thread, host)
        elif (match := lines.SIZE.search(text)) is not None:
            draft = self._draft(thread)
            draft.ranks, draft.nodes = int(match["ranks"]), int(match["nodes"])
            draft.own.add(int(match["rank"]))
        elif (match := lines.PATTERN.search(text)) is not None:
            ident, channels, intra, inter, *types = match.groups()
            pattern = SearchResult(int(ident), int(channels), float(intra), float(inter), *types)
            draft = self._draft(thread)
            draft.patterns.setdefault(pattern.number, pattern)
            draft.pattern = pattern.number
        elif (match := lines.PATTERN_CHANNEL.search(text)) is not None:
            self._take_pattern_channel(match, self._draft(thread))
        elif (match := lines.PICK.search(text)) is not None:
            if len(self.picks) < _MAX_PICKS:
                self.picks[lines.read_pick(match)] += 1
        elif "Connected all rings" in text:
            self._draft(thread).rings_connected = True
        else:
            self._take_remark(thread, level, text, number)

    def _take_remark(self, thread: lines.Thread, level: str, text: str, number: int) -> None:
        if (match := lines.VERSION.search(text)) is not None:
            self.library = self.library or f"{match[1]} {match[2]}"
        if (match := lines.SIMPLE_ORDER.search(text)) is not None:
            self._report(
                "simple-order",
                f"NCCL's search got no path for pattern {match[1]} and fell back to the simple "
                "order of ranks: one channel, which its tuner counts as 0.1 GB/s",
                "try another NCCL: 2.25.1 and later find no ring over PCIe slower than 18 "
                "GB/s on GPUs of compute capability 10.0 and more",
                number,
            )
        if (match := lines.NO_P2P.search(text)) is not None:
            self._refused.add((int(match["a"] or match["c"]), int(match["b"] or match["d"])))
            pairs = ", ".join(f"{a}-{b}" for a, b in sorted(self._refused)[:_MAX_PAIRS])
            left = len(self._refused) - _MAX_PAIRS
            self.findings["p2p-refused"] = FileFinding(
                "p2p-refused",
                f"P2P is refused between GPUs {pairs}{f' and {left} more' if left > 0 else ''}, so "
                "they send through host memory",
                "look for ACS, the IOMMU or a driver that forbids P2P: topo-probe's check says "
                "which (GeForce cards have it in no stock driver)",
                number,
            )
        if (match := lines.ENVIRONMENT.search(text)) is not None:
            self.take_variable(match[1], match[2].rstrip("."), number)
        if (match := lines.NETWORK.search(text)) is not None and match[1].lower() == "socket":
            self._report("network-socket", "the network is TCP (Socket)", "", number)
        if "NVLS comm" in text or "Connected NVLS" in text:
            self._draft(thread).nvls = True
        if (match := lines.FABRIC.search(text)) is not None:
            self._take_fabric(match, number)
        if lines.GDR_OFF.search(text) is not None:
            self._report(
                "no-gdr",
                "GPUDirect RDMA is off for a NIC, so data passes through host memory before it "
                "reaches the network",
                "topo-probe says for each GPU and NIC why (nvidia_peermem, DMA-BUF, ACS, distance)",
                number,
            )
        warning = " ".join(text.split())[:200] if level == "WARN" else ""
        if warning and len(self._warnings) < _MAX_WARNINGS and warning not in self._warnings:
            self._warnings.append(warning)
            self._report(
                f"warning-{len(self._warnings)}", f"the library warned: {warning}", "", number
            )

    def _take_fabric(self, match: re.Match[str], number: int) -> None:
        """Record the fabric of a GPU, which a GPU without NVSwitches does not have."""
        bus, state, mask = match[1], int(match[2]), int(match[3], 16)
        if not 0 < state < len(FABRIC_STATES):
            return
        said = f"healthMask {match[3]}: {describe_health(mask)}" if mask else "no health"
        if FABRIC_STATES[state] != "completed":
            self._report(
                "fabric-not-completed",
                f"the NVLink fabric of GPU {bus} is {FABRIC_STATES[state]} (state {state}), so "
                "NVLink through the switches does not work",
                "start nvidia-fabricmanager, or on NVL72 look at the IMEX service and the switch "
                "trays; then reset the GPUs",
                number,
            )
            said = FABRIC_STATES[state]
        elif mask and describe_health(mask) != HEALTHY:
            self._report(
                "fabric-unhealthy",
                f"the NVLink fabric of GPU {bus} is not well: {describe_health(mask)} (healthMask "
                f"{match[3]})",
                "check nvidia-smi -q (Fabric, Health), the fabric manager's log and the switches "
                "for SXid errors",
                number,
            )
        self._fabrics.setdefault(bus, said)

    def describe_fabrics(self) -> str:
        """Return what the log says of the GPUs' NVLink fabrics; empty if it says nothing."""
        said = Counter(self._fabrics.values())
        texts = [
            f"the fabric of {count} GPU{'s' if count > 1 else ''} is registered, {text}"
            for text, count in said.items()
        ]
        if texts and all(text.endswith(HEALTHY) for text in said):
            texts[-1] += ", so a fault is elsewhere"
        return "; ".join(texts)

    @property
    def failure(self) -> tuple[int, str] | None:
        """The line and the text of what ended the start, or a run after it; None if nothing did."""
        has_begun = any(draft.started for _, draft in self.drafts)
        if self._completed:
            return None if self._stop.is_past else self._stop.found
        return self._failure.find(has_begun) or self._stop.found

    @property
    def what_failed(self) -> str:
        """What the `failure` was of, in words: the start, a call after it, or some call."""
        if self._completed:
            return "a call failed after the initialization"
        # An excerpt may begin after the start.
        return "the start failed" if self.drafts else "a call failed"

    def _report(self, name: str, message: str, advice: str, number: int) -> None:
        self.findings.setdefault(name, FileFinding(name, message, advice, number))

    def take_variable(self, name: str, value: str, number: int, doubt: str = "") -> None:
        """Record that line `number` sets the library's variable `name` to `value`.

        It is reported if the variable may limit the library, or replaces its search. `doubt` is
        text to append, on why the variable may not be set.
        """
        if name == "NCCL_TOPO_DUMP_FILE":
            self.topology_files.append(value)
        finding, text = f"variable-{name.lower()}", f"{name} is set to {value}{doubt}"
        is_harmless = (name.endswith("_DISABLE") and value in ("0", "")) or (
            name == "NCCL_NVLS_ENABLE" and value != "0"
        )
        if name in _LIMITING and not is_harmless:
            self._report(finding, text, _LIMITING[name], number)
        elif name in _STEERING:
            self._report(finding, f"{text}: the search follows it", "", number)

    def _take_connection(self, match: re.Match[str], draft: Draft, host: str | None) -> None:
        """Record a connection: its transport, its source's location, and its hop.

        A ring may contain the hop.
        """
        channel, index, src, at, dst, _, via = match.groups()
        draft.transports[lines.name_transport(via)] += 1
        if int(src) >= _MAX_RANKS or int(dst) >= _MAX_RANKS:
            return
        draft.ends |= {int(src), int(dst)}
        draft.own.add(int(dst if "receive" in match[0] else src))
        if "receive" not in match[0]:
            draft.locations.setdefault(int(src), lines.read_location(at, host))
        # Connections after "Connected all rings" belong to trees.
        if not draft.rings_connected and index in (None, "0"):
            draft.connections.setdefault(int(channel), {}).setdefault(int(src), int(dst))

    def _take_ring(self, match: re.Match[str], thread: lines.Thread) -> None:
        """Record a complete ring.

        If this thread listed the channel before, a new communicator begins.
        """
        channel, draft = int(match[1]), self._draft(thread)
        if channel in draft.rings or (draft.complete and thread is not None):
            draft = self._draft(thread, anew=True)
        if match[4]:
            draft.cut_lines = True
        else:
            draft.rings[channel] = tuple(map(int, match[3].split()))
        draft.promised = int(match[2] or 0) or draft.promised

    def _take_pattern_channel(self, match: re.Match[str], draft: Draft) -> None:
        """Record a ring of NCCL's search, whose GPUs all are on this host."""
        if draft.pattern == RING_PATTERN:
            gpus = tuple(name.removeprefix("GPU/") for name in match["gpus"].split())
            draft.found_rings.setdefault(int(match["channel"]), gpus)

    def _take_trees(self, match: re.Match[str], thread: lines.Thread) -> None:
        """Record the trees of one rank; a rank with other parents begins a new communicator."""
        entries = [(int(c), lines.read_tree(entry)) for c, entry in lines.TREE.findall(match[1])]
        draft = self._draft(thread)
        first = next((e for _, e in entries if e), None)
        parents = draft.parents.get(entries[0][0], {}) if entries else {}
        if first is not None and parents.get(first[0], first[1]) != first[1]:
            draft = self._draft(thread, anew=True)
        for channel, entry in entries:
            if entry is not None:
                draft.own.add(entry[0])
                draft.parents.setdefault(channel, {})[entry[0]] = entry[1]

    def _complete_size(self, drafts: list[Draft]) -> None:
        """Give a communicator whose own lines do not state its size the only one in the log."""
        named = max(chain(*(draft.own | draft.ends for draft in drafts)), default=0)
        size = self.locations.size
        if size is not None and 0 < named < size and not any(draft.ranks for draft in drafts):
            drafts[0].ranks = size

    def _take_init(self, match: re.Match[str], thread: lines.Thread, host: str | None) -> None:
        """Record the line that begins or ends the initialization of a communicator."""
        draft, rank = self._draft(thread), int(match["rank"])
        is_next = draft.started and (thread is not None or rank in draft.locations)
        if match["when"] == "START" and is_next:
            draft = self._draft(thread, anew=True)
        draft.ranks, draft.id = int(match["ranks"]), match["id"] or draft.id
        draft.own.add(rank)
        draft.locations[rank] = read_stated_location(match, host)
        if match["when"] == "COMPLETE":
            self._completed = True
            # A rank that is complete again is one of another run.
            self._stop.is_past |= self._stop.found is not None and rank in self._completed_ranks
            self._completed_ranks.add(rank)
            draft.complete = thread is not None
        draft.started = True

    @property
    def says_something(self) -> bool:
        """Whether the log contains anything to judge."""
        return bool(
            self.picks
            or self._completed
            or any(
                d.rings or d.hops or d.parents or d.patterns or d.transports for _, d in self.drafts
            )
            or not all(x.startswith(_NO_RESULT) for x in self.findings)
        )

    @property
    def is_on_one_host(self) -> bool:
        """Whether the log shows no sign of a second host.

        If the largest communicator states its number of hosts, their names are ignored, which may
        be garbled.
        """
        drafts = [draft for _, draft in self.drafts]
        largest = max((draft.ranks or 0 for draft in drafts), default=0)
        is_stated = any(draft.nodes and draft.ranks == largest for draft in drafts)
        return (
            (is_stated or self.signatures.count_hosts() < 2)
            and all((draft.nodes or 1) == 1 for draft in drafts)
            and not any(name.startswith("NET") for d in drafts for name in d.transports)
        )

    def collect_contents(self, where: str, is_measured: bool = False) -> FileContents:
        """Return the contents of the log, named `where`, after its last line.

        `is_measured` is whether the text has results. Raise InputError if the log breaks off among
        the channels.
        """
        notes: list[str] = []
        stop = self._stop.found
        if stop is not None and (is_measured or self._stop.is_past):
            notes.append(f"line {stop[0]}: a run failed: {stop[1]}; the rest of the text is judged")
        elif self.failure is not None:
            line, text = self.failure
            self._report(
                "start-failed", f"{self.what_failed}: {text}", "mend that first, then measure", line
            )
            self.findings = {
                name: finding
                for name, finding in self.findings.items()
                if finding.line != line or not name.startswith("warning-")
            }
        if self._repeated:
            notes.append(
                f"line {self._repeated}: Ray left out the lines of other ranks (repeated ... "
                "across cluster); run with RAY_DEDUP_LOGS=0"
            )
        runs = [run for drafts in self._group() for run in part_runs(drafts, notes)]
        for drafts in runs:
            self._complete_size(drafts)
        groups = [(finish(drafts, notes), drafts) for drafts in runs]
        self._refuse_cut(where, groups)
        communicators = count_alike([communicator for communicator, _ in groups])
        signed = [draft for thread, draft in self.drafts if thread is not None and draft.started]
        is_whole = is_measured or any(draft.complete for draft in signed)
        if signed and not is_whole and self.failure is None:
            self._report(
                "start-unfinished",
                "the log ends before any communicator is complete: the start hangs, or the log is "
                "cut",
                "where it hangs, look for ranks that are missing or that ended, and for what "
                "forbids connections between hosts; else give the whole log",
                self.last_line,
            )
        return FileContents(
            where,
            f"log of {(self.library or ('RCCL' if self.is_rccl else 'NCCL')).split()[0]}",
            self.library,
            communicators=tuple(c for c in communicators if c.ranks > 1),
            picks=tuple(sorted(self.picks, key=lambda p: (p.collective or "", p.size_bytes))),
            findings=tuple(self.findings.values()),
            notes=tuple(dict.fromkeys(notes)),
            topology_files=tuple(self.topology_files),
        )

    def _group(self) -> list[list[Draft]]:
        by_id: dict[object, list[Draft]] = defaultdict(list)
        made: Counter[object] = Counter()
        for thread, draft in self.drafts:
            if draft.ranks is None and draft.rings:
                ring = next(iter(draft.rings.values()))
                # NCCL cuts its lines of long rings.
                draft.ranks = len(ring) if set(ring) == set(range(len(ring))) else None
            key: object = draft.id
            if key is None:
                key = draft.ranks, made[thread, draft.ranks]
                made[thread, draft.ranks] += 1
            by_id[key].append(draft)
        # Drafts without a number of ranks belong to the communicator of the same turn, or the last.
        unsized = [key for key in by_id if isinstance(key, tuple) and key[0] is None]
        sized = [key for key in by_id if key not in unsized]
        for key in unsized if sized else unsized[1:]:
            assert isinstance(key, tuple)
            target = sized[min(key[1], len(sized) - 1)] if sized else unsized[0]
            by_id[target] += by_id.pop(key)
        return list(by_id.values())

    def _refuse_cut(
        self, where: str, groups: list[tuple[ObservedCommunicator, list[Draft]]]
    ) -> None:
        """Raise InputError if the text ends in the middle of a communicator's rings."""
        for c, drafts in groups:
            last = max((channel for d in drafts for channel in d.rings), default=-1)
            # A log from which somebody removed lines goes on after the rings; a cut log does not.
            goes_on = c.trees or c.transports or any(d.complete or d.cut_lines for d in drafts)
            if c.promised is not None and last < c.promised - 1 and not goes_on:
                raise InputError(
                    f"{where}, line {self.last_line}: the log is cut: it ends after "
                    f"{len(c.rings)} of {c.promised} channels; give the whole log of the start "
                    "(NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING)"
                )
