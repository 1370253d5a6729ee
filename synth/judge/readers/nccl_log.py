"""Read logs of NCCL_DEBUG=INFO, NCCL's and RCCL's: from many ranks, interleaved, with whatever a
launcher puts before lines.

A communicator is made by one thread a rank. What a thread says from one initialisation to the next
is a draft; drafts of one communicator are put together by its id where it is printed (2.18 and
later), else by how many communicators of that many ranks the thread had made before.
"""

from __future__ import annotations

import re
from collections import Counter

from ....topo.errors import InputError
from ..found import Communicator, Finding, Pick, Place, Reading
from . import log_lines as lines
from .log_drafts import Draft, count_alike, finish

# Lines that say something; all others are passed over quickly.
_WORTH = re.compile(
    r"Channel|Ring |Trees? |Pattern \d|Init (?:START|COMPLETE)|nRanks|-> Algo|simple order|P2P|version|set (?:by env|to)"
    r"|WARN|Using network|NVLS|RDMA Disabled|Connected all|peer query"
)
_MOST_RANKS = 1 << 16
_MOST_PICKS = 10_000
_MOST_WARNINGS = 3
_LIMITING = {
    "NCCL_P2P_DISABLE": "unset it unless P2P is broken here: GPUs then send through host memory",
    "NCCL_P2P_LEVEL": "unset it, or raise it to SYS: it decides between which GPUs P2P is used",
    "NCCL_SHM_DISABLE": "unset it: ranks of one host then send over the network",
    "NCCL_MAX_NCHANNELS": "unset it: fewer channels carry less",
    "NCCL_MAX_CTAS": "unset it: fewer channels carry less",
    "NCCL_ALGO": "unset it unless it was found to be faster at every size",
    "NCCL_PROTO": "unset it unless it was found to be faster at every size",
    "NCCL_IB_DISABLE": "unset it: nodes then talk over TCP",
    "NCCL_NVLS_ENABLE": "unset it where NVSwitches can add",
    "NCCL_BUFFSIZE": "unset it unless it was found to be faster",
    "NCCL_NTHREADS": "unset it unless it was found to be faster",
}


class LogReader:
    """Takes a log line by line; `reading` is what it came to."""

    def __init__(self, signatures: lines.Signatures) -> None:
        self.signatures = signatures
        self.drafts: list[tuple[object, Draft]] = []
        self._current: dict[object, Draft] = {}
        self.picks: Counter[Pick] = Counter()
        self.library: str | None = None
        self.findings: dict[str, Finding] = {}
        self.topology_files: list[str] = []
        self.lines = self.last_line = 0
        self._completed = self.is_rccl = False
        self._refused: set[tuple[int, int]] = set()
        self._warnings: list[str] = []

    def take(self, line: str, number: int) -> None:
        """Take one line of the log."""
        if "NCCL" in line:
            self.lines += 1
            self.is_rccl = (
                self.is_rccl or "RCCL" in line or (" busId " in line and " nRanks " in line)
            )
        if line and not line.isspace():
            self.last_line = number
        if _WORTH.search(line) is None:
            return
        for message in self.signatures.split(line):
            self._take_message(message, number)

    def _draft(self, thread: object) -> Draft:
        draft = self._current.get(thread)
        if draft is None:
            draft = self._current[thread] = Draft()
            self.drafts.append((thread, draft))
        return draft

    def _next_draft(self, thread: object) -> Draft:
        self._current.pop(thread, None)
        return self._draft(thread)

    def _take_message(self, message: lines.Message, number: int) -> None:
        """Take what a message says, whichever of the known ones it is."""
        text, thread = message.text, message.thread
        host = thread[0] if thread else None
        if (found := lines.CONNECTION.search(text)) is not None:
            self._take_connection(found, self._draft(thread), host)
        elif (found := lines.RING.search(text)) is not None:
            self._take_ring(found, thread)
        elif (found := lines.TREES.search(text)) is not None:
            self._take_trees(found, thread)
        elif (found := lines.RING_HOP.search(text)) is not None:
            channel, _, rank, after = (int(x) for x in found.groups()[:4])
            draft = self._draft(thread)
            draft.hops.setdefault(channel, {})[rank] = after
        elif (found := lines.TREE_HOP.search(text)) is not None:
            channel, parent, rank = (int(x) for x in found.groups()[:3])
            self._draft(thread).parents.setdefault(channel, {}).setdefault(rank, parent)
        elif (found := lines.INIT.search(text)) is not None:
            self._take_init(found, thread, host)
        elif (found := lines.SIZE.search(text)) is not None:
            draft = self._draft(thread)
            draft.ranks, draft.nodes = int(found["ranks"]), int(found["nodes"])
        elif (found := lines.PATTERN.search(text)) is not None:
            pattern = lines.read_pattern(found)
            self._draft(thread).patterns.setdefault(pattern.number, pattern)
        elif (found := lines.PICK.search(text)) is not None:
            if len(self.picks) < _MOST_PICKS:
                self.picks[lines.read_pick(found)] += 1
        elif "Connected all rings" in text:
            self._draft(thread).rings_connected = True
        else:
            self._take_remark(message, number)

    def _take_remark(self, message: lines.Message, number: int) -> None:
        """Take what is said of the machine or the environment."""
        text = message.text
        if (found := lines.VERSION.search(text)) is not None:
            self.library = self.library or f"{found[1]} {found[2]}"
        if (found := lines.SIMPLE_ORDER.search(text)) is not None:
            self._find(
                "simple-order",
                f"no path was found for pattern {found[1]}, and the library fell back to the "
                "simple order of ranks: one "
                "channel, which its tuner counts as 0.1 GB/s",
                "give it a graph file (topo-synth --format nccl-graph), or an older or newer "
                "NCCL: 2.25.1 and later find no "
                "ring over PCIe slower than 18 GB/s on GPUs of compute capability 10.0 and more",
                number,
            )
        if (found := lines.NO_P2P.search(text)) is not None:
            self._refused.add((int(found["a"] or found["c"]), int(found["b"] or found["d"])))
            pairs = ", ".join(f"{a}-{b}" for a, b in sorted(self._refused)[:6])
            more = f" and {len(self._refused) - 6} more" if len(self._refused) > 6 else ""
            self.findings["p2p-refused"] = Finding(
                "p2p-refused",
                f"P2P is refused between GPUs {pairs}{more}, so they send through host memory",
                "look for ACS, the IOMMU or a driver that forbids P2P: topo-probe --check says "
                "which "
                "(GeForce cards have it in no stock driver)",
                number,
            )
        if (found := lines.ENVIRONMENT.search(text)) is not None:
            self._take_variable(found[1], found[2].rstrip("."), number)
        if (found := lines.NETWORK.search(text)) is not None and found[1].lower() == "socket":
            self.findings.setdefault(
                "network-socket",
                Finding("network-socket", "the network is TCP (Socket)", "", number),
            )
        if "NVLS comm" in text or "Connected NVLS" in text:
            self._draft(message.thread).nvls = True
        if lines.GDR_OFF.search(text) is not None:
            self._find(
                "no-gdr",
                "GPUDirect RDMA is off for a NIC, so data passes through host memory on its way "
                "to the network",
                "topo-probe says for each GPU and NIC why (nvidia_peermem, DMA-BUF, ACS, distance)",
                number,
            )
        if message.level == "WARN" and len(self._warnings) < _MOST_WARNINGS:
            said = " ".join(text.split())[:200]
            if said and said not in self._warnings:
                self._warnings.append(said)
                self._find(
                    f"warning-{len(self._warnings)}", f"the library warned: {said}", "", number
                )

    def _find(self, name: str, message: str, advice: str, number: int) -> None:
        self.findings.setdefault(name, Finding(name, message, advice, number))

    def _take_variable(self, name: str, value: str, number: int) -> None:
        """Take what an environment variable was set to."""
        if name == "NCCL_TOPO_DUMP_FILE":
            self.topology_files.append(value)
        harmless = value in ("0", "") and name.endswith(("_DISABLE",))
        if name in _LIMITING and not harmless and not (name == "NCCL_NVLS_ENABLE" and value != "0"):
            self._find(
                f"variable-{name.lower()}", f"{name} is set to {value}", _LIMITING[name], number
            )
        elif name in ("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE", "NCCL_RINGS", "RCCL_TREES"):
            self._find(
                f"variable-{name.lower()}",
                f"{name} is set to {value}: the search goes by it",
                "",
                number,
            )

    def _take_connection(self, found: re.Match[str], draft: Draft, host: str | None) -> None:
        """Take one connection: its transport, the places of its ends, and that it may be part of a
        ring.
        """
        channel, index, src, at, dst, _, via = found.groups()
        draft.transports[lines.name_transport(via)] += 1
        if int(src) >= _MOST_RANKS or int(dst) >= _MOST_RANKS:
            return
        if "receive" not in found[0]:
            draft.places.setdefault(int(src), lines.place_of(at, host))
        if not draft.rings_connected and index in (None, "0"):
            draft.connections.setdefault(int(channel), {}).setdefault(int(src), int(dst))

    def _take_ring(self, found: re.Match[str], thread: object) -> None:
        """Take a line with a whole ring; a channel that this thread had already begins another
        communicator.
        """
        channel, promised = int(found[1]), None if found[2] is None else int(found[2])
        draft = self._draft(thread)
        if channel in draft.rings or (draft.complete and thread is not None):
            draft = self._next_draft(thread)
        if found[4]:
            draft.cut_lines = True
        else:
            draft.rings[channel] = tuple(int(x) for x in found[3].split())
        draft.promised = promised or draft.promised

    def _take_trees(self, found: re.Match[str], thread: object) -> None:
        """Take the trees of one rank; a rank that spoke already begins another communicator."""
        entries = [(int(c), lines.read_tree(entry)) for c, entry in lines.TREE.findall(found[1])]
        draft = self._draft(thread)
        first = next((e for _, e in entries if e), None)
        known = draft.parents.get(entries[0][0], {}) if entries else {}
        if first is not None and first[0] in known and known[first[0]] != first[1]:
            draft = self._next_draft(thread)
        for channel, entry in entries:
            if entry is not None:
                draft.parents.setdefault(channel, {})[entry[0]] = entry[1]

    def _take_init(self, found: re.Match[str], thread: object, host: str | None) -> None:
        """Take the line that begins or ends the making of a communicator."""
        draft, rank = self._draft(thread), int(found["rank"])
        if (
            found["when"] == "START"
            and (draft.complete or draft.started)
            and (thread is not None or rank in draft.places)
        ):
            draft = self._next_draft(thread)
        draft.ranks, draft.id = int(found["ranks"]), found["id"] or draft.id
        device = found["nvml"] or found["cuda"]
        bus = lines.read_bus_id(found["bus"]) if found["bus"] else None
        draft.places[rank] = Place(
            host, None if device is None else int(device), bus, found["nvml"] is not None
        )
        if found["when"] == "COMPLETE":
            self._completed = True
            draft.complete = thread is not None
        draft.started = True

    # -- what it came to
    # -------------------------------------------------------------------------------------------

    @property
    def says_something(self) -> bool:
        """Whether anything was read that can be judged."""
        return bool(
            self.picks
            or any(
                d.rings or d.hops or d.parents or d.patterns or d.transports for _, d in self.drafts
            )
            or self._completed
            or any(
                not name.startswith(("warning", "variable", "network")) for name in self.findings
            )
        )

    def reading(self, where: str) -> Reading:
        """Return what the log says. Raises InputError where it breaks off among the channels."""
        notes: list[str] = []
        groups = [(finish(drafts, notes), drafts) for drafts in self._group()]
        self._refuse_cut(where, groups)
        communicators = count_alike([communicator for communicator, _ in groups])
        signed = [draft for thread, draft in self.drafts if thread is not None and draft.started]
        if signed and not any(draft.complete for draft in signed):
            notes.append(
                f"the log ends, at line {self.last_line}, before any communicator is complete: it "
                "may be cut"
            )
        return Reading(
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
        """Return the drafts of each communicator."""
        groups: dict[object, list[Draft]] = {}
        made: Counter[object] = Counter()
        for thread, draft in self.drafts:
            if draft.ranks is None and draft.rings:
                draft.ranks = len(next(iter(draft.rings.values())))
            if draft.id is not None:
                groups.setdefault(draft.id, []).append(draft)
                continue
            number = made[thread, draft.ranks]
            made[thread, draft.ranks] += 1
            groups.setdefault((draft.ranks, number), []).append(draft)
        # What nobody signed with a number of ranks belongs to the communicator that is the only
        # one, or the first.
        unsigned = [key for key in groups if isinstance(key, tuple) and key[0] is None]
        signed = [key for key in groups if key not in unsigned]
        for key in unsigned if signed else unsigned[1:]:
            assert isinstance(key, tuple)
            groups[signed[min(key[1], len(signed) - 1)] if signed else unsigned[0]] += groups.pop(
                key
            )
        return list(groups.values())

    def _refuse_cut(self, where: str, groups: list[tuple[Communicator, list[Draft]]]) -> None:
        """Raise InputError where the text ends while a communicator's rings were being listed."""
        # Whoever leaves lines out on purpose shows what comes after; a log that is cut has nothing
        # there.
        for c, drafts in groups:
            highest = max((max(d.rings) for d in drafts if d.rings), default=-1)
            goes_on = c.trees or c.transports or any(d.complete or d.cut_lines for d in drafts)
            if c.promised is not None and highest < c.promised - 1 and not goes_on:
                raise InputError(
                    f"{where}, line {self.last_line}: the log is cut: it ends after "
                    f"{len(c.rings)} of {c.promised} channels; "
                    "give the whole log of the start (NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING)"
                )
