"""Hosts behind switches, as a scheduler's or cloud's file names them: checked for what such files
get wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...errors import InputError
from ...names import join_first
from ...schema import is_label

MOST_HOSTS = 16_384
_MOST_CHARACTERS = 253
_NAMED = 3


@dataclass(frozen=True)
class Host:
    """A host: the switch that it hangs on, and the place in the file that says so."""

    switch: str
    place: str


@dataclass
class Cluster:
    """Collects hosts and switches while a file is read; `what` names the format, `where` the file.

    `hosts` are in the file's order, which is that of ranks. `above` has the switches right above
    each switch.
    """

    what: str
    where: str
    hosts: dict[str, Host] = field(default_factory=dict)
    above: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _places: dict[str, str] = field(default_factory=dict)

    def add_switch(self, name: str, place: str, *, once: bool = False) -> None:
        """Add a switch. Raises InputError for a name that is none, and, with `once`, for one that
        there is already.
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
        """Add a host below a switch. Raises InputError for a name that is none, or that another
        host has.
        """
        self._check_name(name, "host", place)
        if name in self.hosts:
            raise InputError(
                f"{place}: host {name} is there already ({self.hosts[name].place}); name each "
                "host once"
            )
        if len(self.hosts) == MOST_HOSTS:
            raise InputError(
                f"{place}: more than {MOST_HOSTS} hosts; give the part of the cluster that the "
                "job runs on"
            )
        self.hosts[name] = Host(switch, place)

    def put_below(self, child: str, parent: str, place: str) -> None:
        """Join a switch to one above it."""
        if child == parent:
            raise InputError(f"{place}: switch {child} is below itself; correct the line")
        self.above[child].setdefault(parent, place)

    def _check_name(self, name: str, what: str, place: str) -> None:
        plain = name and len(name) <= _MOST_CHARACTERS and is_label(name)
        if not plain or any(c.isspace() or c in "/'\"\\$`" for c in name):
            raise InputError(
                f"{place}: {name!r:.60} is no name of a {what}; expected one word without / and "
                "quotes"
            )

    def finish(self) -> Cluster:
        """Return the cluster, switches without hosts left out and alike ones above the same
        switches made one.

        Raises InputError where there is no host, switches are in a circle, or hosts cannot reach
        each other.
        """
        if not self.hosts:
            raise InputError(
                f"{self.where}: {self.what} without a host; expected lines that name hosts"
            )
        self._refuse_circles()
        used = set(self._list_used())
        idle = [name for name in self.above if name not in used]
        if idle:
            self.notes.append(f"{join_first(idle, _NAMED)}: no host below, left out")
        self.above = {
            child: {parent: place for parent, place in parents.items() if parent in used}
            for child, parents in self.above.items()
            if child in used
        }
        self._merge_planes()
        self._refuse_parts()
        return self

    def _list_used(self) -> Iterable[str]:
        """Yield the switches that have hosts below them."""
        stack = [host.switch for host in self.hosts.values()]
        seen = set(stack)
        while stack:
            name = stack.pop()
            yield name
            stack += [parent for parent in self.above[name] if parent not in seen]
            seen |= self.above[name].keys()

    def _refuse_circles(self) -> None:
        done: set[str] = set()
        for start in self.above:
            path: dict[str, None] = {}
            stack: list[tuple[str, bool]] = [(start, False)]
            while stack:
                name, left = stack.pop()
                if left:
                    del path[name]
                    done.add(name)
                elif name in path:
                    circle = list(path)[list(path).index(name) :]
                    place = self.above[circle[-1]][name]
                    raise InputError(
                        f"{place}: switches in a circle: {' below '.join([*circle, name])}; a "
                        "tree has none"
                    )
                elif name not in done:
                    path[name] = None
                    stack += [(name, True), *((parent, False) for parent in self.above[name])]

    def _merge_planes(self) -> None:
        """Make switches one that stand above the same switches (the spines of a fat tree): data is
        spread over them.
        """
        while True:
            below = self.list_below()
            alike: dict[tuple[str, ...], list[str]] = {}
            for name, children in below.items():
                if children:
                    alike.setdefault((*sorted(children), "", *sorted(self.above[name])), []).append(
                        name
                    )
            planes = [names for names in alike.values() if len(names) > 1]
            hanging = {host.switch for host in self.hosts.values()}
            planes = [names for names in planes if not hanging & set(names)]
            if not planes:
                return
            for names in planes:
                self.notes.append(
                    f"{join_first(names, _NAMED)}: above the same switches; taken as one, "
                    f"{names[0]}: data is spread over them"
                )
                for parents in self.above.values():
                    for name in names[1:]:
                        parents.pop(name, None)
                for name in names[1:]:
                    del self.above[name]

    def list_below(self) -> Mapping[str, list[str]]:
        """Return the switches right below each switch."""
        below: dict[str, list[str]] = {name: [] for name in self.above}
        for child, parents in self.above.items():
            for parent in parents:
                below[parent].append(child)
        return below

    def list_tops(self) -> list[str]:
        """Return the switches that nothing is above."""
        return [name for name, parents in self.above.items() if not parents]

    def _refuse_parts(self) -> None:
        below, joined = self.list_below(), {next(iter(self.hosts.values())).switch}
        stack = list(joined)
        while stack:
            name = stack.pop()
            near = [n for n in (*below[name], *self.above[name]) if n not in joined]
            joined.update(near)
            stack += near
        for name, host in self.hosts.items():
            if host.switch not in joined:
                first = next(iter(self.hosts))
                raise InputError(
                    f"{host.place}: nothing joins {name}'s switch {host.switch} to {first}'s, "
                    f"{self.hosts[first].switch}; "
                    "add the switch above both"
                )


def join_tops(cluster: Cluster, place: str) -> None:
    """Put one network above the switches that nothing is above, where there are several; it is
    noted.
    """
    tops = cluster.list_tops()
    if len(tops) > 1:
        name = "network0"
        while name in cluster.above:
            name += "_"
        cluster.add_switch(name, place)
        for top in tops:
            cluster.put_below(top, name, place)
        cluster.notes.append(f"{join_first(tops, _NAMED)}: assumed to be joined by one network")
