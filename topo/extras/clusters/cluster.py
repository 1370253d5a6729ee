"""Collect the hosts and switches that a scheduler's or cloud's file names, and check them.

The readers of the formats fill a Cluster and call `finish`; read_cluster makes a topology of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from ...errors import InputError
from ...grouping import group_by_key
from ...names import join_first
from ...schema import is_label

# Bounds the hosts that a few characters such as node[1-999999999] can request.
MAX_HOSTS = 16_384
# The longest DNS name.
_MAX_CHARACTERS = 253
# Names that a note lists before "and 5 more".
_MAX_NAMED = 3


@dataclass(frozen=True)
class Host:
    """A host of a cluster: the switch right above it, and the file and line that name it."""

    switch: str
    place: str


@dataclass
class Cluster:
    """Hosts and switches collected from a file; `what` names the format, `where` the file.

    `hosts` are by name, in the file's order, which is that of ranks. `above` maps a switch to the
    switches right above it, each with the place that says so. A place is the file and line (or
    item), for errors. `notes` have a line for each assumption and omission.
    """

    what: str
    where: str
    hosts: dict[str, Host] = field(default_factory=dict)
    above: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _places: dict[str, str] = field(default_factory=dict)

    def add_switch(self, name: str, place: str, *, once: bool = False) -> None:
        """Add a switch, unless it is there already; `place` is where the file names it.

        Raise InputError for a bad name and, if `once`, for a name in use.
        """
        self._check_name(name, "switch", place)
        if once and name in self._places:
            raise InputError(
                f"{place}: switch {name} is there already ({self._places[name]}); name each "
                "switch once"
            )
        self._places.setdefault(name, place)
        self.above.setdefault(name, {})

    def add_host(self, name: str, switch: str, place: str) -> None:
        """Add a host below a switch; `place` is where the file names it.

        Raise InputError for a bad name or one in use, and for more than MAX_HOSTS hosts.
        """
        self._check_name(name, "host", place)
        if name in self.hosts:
            raise InputError(
                f"{place}: host {name} is there already ({self.hosts[name].place}); name each "
                "host once"
            )
        if len(self.hosts) == MAX_HOSTS:
            raise InputError(
                f"{place}: more than {MAX_HOSTS} hosts; give the part of the cluster that the "
                "job runs on"
            )
        self.hosts[name] = Host(switch, place)

    def put_below(self, child: str, parent: str, place: str) -> None:
        """Put the switch `child` below `parent`; both must have been added.

        Raise InputError, which names the `place` in the file, if they are the same.
        """
        if child == parent:
            raise InputError(f"{place}: switch {child} is below itself; correct the line")
        self.above[child].setdefault(parent, place)

    def _check_name(self, name: str, what: str, place: str) -> None:
        is_plain = name and len(name) <= _MAX_CHARACTERS and is_label(name)
        if not is_plain or any(c.isspace() or c in "/'\"\\$`" for c in name):
            raise InputError(
                f"{place}: {name!r:.60} is no name of a {what}; expected one word without / and "
                "quotes"
            )

    def join_tops(self) -> None:
        """Put one network above the switches that have none above them, if there are several.

        That is an assumption, which is noted.
        """
        tops = [name for name, parents in self.above.items() if not parents]
        if len(tops) > 1:
            network = "network0"
            while network in self.above:
                network += "_"
            self.add_switch(network, self.where)
            for top in tops:
                self.put_below(top, network, self.where)
            self.notes.append(
                f"{join_first(tops, _MAX_NAMED)}: assumed to be joined by one network"
            )

    def finish(self) -> Cluster:
        """Check the cluster, drop switches without hosts, merge equivalent ones, and return it.

        What is dropped or merged is noted. Raise InputError if there is no host, switches form a
        circle, or hosts cannot reach each other.
        """
        if not self.hosts:
            raise InputError(
                f"{self.where}: {self.what} without a host; expected lines that name hosts"
            )
        self._refuse_circles()
        used = self.find_above({host.switch for host in self.hosts.values()})
        idle = [name for name in self.above if name not in used]
        if idle:
            self.notes.append(f"{join_first(idle, _MAX_NAMED)}: no host below, left out")
        self.above = {name: parents for name, parents in self.above.items() if name in used}
        self._merge_planes()
        self._refuse_parts()
        return self

    def find_above(self, switches: set[str]) -> set[str]:
        """Return the given switches and all switches above them."""
        reached, fresh = set(switches), switches
        while fresh:
            fresh = {parent for name in fresh for parent in self.above[name]} - reached
            reached |= fresh
        return reached

    def _refuse_circles(self) -> None:
        try:
            TopologicalSorter(self.above).prepare()
        except CycleError as error:
            circle = error.args[1][::-1]  # each below the next
            place = self.above[circle[-2]][circle[-1]]
            raise InputError(
                f"{place}: switches in a circle: {' below '.join(circle)}; a tree has none"
            ) from None

    def _merge_planes(self) -> None:
        """Merge switches above the same switches, since they share traffic.

        The spines of a fat tree are such switches.
        """
        hosting = {host.switch for host in self.hosts.values()}
        while True:
            alike = group_by_key(
                ((tuple(sorted(children)), tuple(sorted(self.above[name]))), name)
                for name, children in self._list_below().items()
                if children
            )
            planes = [x for x in alike.values() if len(x) > 1 and hosting.isdisjoint(x)]
            if not planes:
                return
            for names in planes:
                self.notes.append(
                    f"{join_first(names, _MAX_NAMED)}: above the same switches; taken as one, "
                    f"{names[0]}: data is spread over them"
                )
                for name in names[1:]:
                    del self.above[name]
                    for parents in self.above.values():
                        parents.pop(name, None)

    def _list_below(self) -> Mapping[str, list[str]]:
        below: dict[str, list[str]] = {name: [] for name in self.above}
        for child, parents in self.above.items():
            for parent in parents:
                below[parent].append(child)
        return below

    def _refuse_parts(self) -> None:
        below, first = self._list_below(), next(iter(self.hosts))
        joined: set[str] = set()
        fresh = {self.hosts[first].switch}
        while fresh:
            joined |= fresh
            fresh = {n for name in fresh for n in (*below[name], *self.above[name])} - joined
        for name, host in self.hosts.items():
            if host.switch not in joined:
                raise InputError(
                    f"{host.place}: nothing joins {name}'s switch {host.switch} to {first}'s, "
                    f"{self.hosts[first].switch}; add the switch above both"
                )
