"""Shares of parameter servers, and weights for averaging among neighbours: exact, and as good as
can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples

import topoplan
from examples.classic.server_shares import equal_hosts, find_shares
from examples.classic.systems.neighbours import (
    metropolis_weights,
    neighbour_edges,
    ring_edges,
)
from topoplan import Device, InfeasibleError, InputError, Link, Router, Topology

F = Fraction


def names(what: str, count: int) -> list[str]:
    return [f"{what}{i}" for i in range(count)]


def load_links(
    topology: Topology, workers: Sequence[str], server: str
) -> dict[tuple[str, str], Fraction]:
    """Return the seconds that a gigabyte on a server takes each link, counted transfer by transfer:
    every worker to the server and back.
    """
    router, crossed = Router(topology), Counter[tuple[str, str]]()
    for worker in workers:
        if server != worker:
            for route in (router.find_route(worker, server), router.find_route(server, worker)):
                assert route is not None
                crossed.update(pairwise(route))
    return {link: x / topology.capacity_GBps[link] for link, x in crossed.items()}


def busiest_s(
    loads: Sequence[dict[tuple[str, str], Fraction]], shares: Sequence[Fraction]
) -> Fraction:
    """Return the seconds of the busiest link, given what each server's gigabyte takes of each."""
    taken: Counter[tuple[str, str]] = Counter()
    for load, share in zip(loads, shares, strict=True):
        for link, seconds in load.items():
            taken[link] += seconds * share  # type: ignore[assignment]
    return F(max(taken.values(), default=0))


@pytest.mark.parametrize("n", [2, 3, 6])
def test_equal_hosts_get_the_shares_that_byteps_derives(n: int) -> None:
    """OSDI 2020, section 4.1: on n worker and k <= n helper machines each helper adds up 2(n-1) /
    (n^2 + kn - 2k) of the gradients, each worker machine (n-k) / (n^2 + kn - 2k), in n times a
    helper's share of time; more helpers bring nothing. With two workers any share of theirs is as
    good, up to the same time.
    """
    for k in {0, 1, 2, 3, n // 2, n - 1, n, n + 1, 2 * n}:
        workers, helpers = names("gpu", n), names("cpu", k)
        found = find_shares(equal_hosts(n, k), workers, workers + helpers)
        below = n * n + min(k, n) * n - 2 * min(k, n)
        assert sum(found.share) == 1
        assert found.s_per_GB == F(2 * n * (n - 1), below) == found.at_least_s_per_GB, (n, k)
        if n > 2 and k <= n:
            assert set(found.share[:n]) == {F(n - k, below)}
            assert set(found.share[n:]) == ({F(2 * (n - 1), below)} if k else set())
        elif n > 2:
            assert set(found.share) == {F(0), F(1, k)}


def test_the_load_is_what_the_transfers_put_on_each_link() -> None:
    topology = topoplan.load("pcie-2socket")
    workers, servers = list(topology.ranks), ["cpu1", "gpu0", "cpu0", "gpu7"]
    found = find_shares(topology, workers, servers)
    loads = [load_links(topology, workers, server) for server in servers]
    assert found.s_per_GB == busiest_s(loads, found.share) == found.at_least_s_per_GB
    assert all(
        found.load[link] / topology.capacity_GBps[link] == found.s_per_GB for link in found.busiest
    )


@settings(max_examples=count_examples(8))
@given(st.data())
def test_no_division_in_twelfths_is_faster_than_the_one_found(data: st.DataObject) -> None:
    """Hosts behind one or two switches, with ports and trunk of any rate, against all divisions in
    twelfths.
    """
    rate = st.integers(1, 9).map(F)
    n, k = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    workers, helpers = names("gpu", n), names("cpu", k)
    trunk = data.draw(rate)
    links = [Link("s0", "s1", trunk), Link("s1", "s0", trunk)]
    for host in workers + helpers:
        switch = data.draw(st.sampled_from(["s0", "s1"]))
        links += [Link(host, switch, data.draw(rate)), Link(switch, host, data.draw(rate))]
    devices = [Device(w) for w in workers] + [Device(h, "cpu") for h in helpers]
    topology = Topology(
        "t", (*devices, Device("s0", "switch"), Device("s1", "switch")), tuple(links)
    )
    servers = (workers + helpers)[: 3 + (n < 3)]
    found = find_shares(topology, workers, servers)
    assert sum(found.share) == 1 and all(share >= 0 for share in found.share)
    loads = [load_links(topology, workers, server) for server in servers]
    assert found.s_per_GB == busiest_s(loads, found.share)
    assert found.at_least_s_per_GB <= found.s_per_GB <= found.at_least_s_per_GB * (1 + F(1, 10**6))
    for counts in product(range(13), repeat=len(servers) - 1):
        if sum(counts) <= 12:
            shares = [F(c, 12) for c in (*counts, 12 - sum(counts))]
            assert busiest_s(loads, shares) >= found.at_least_s_per_GB


def test_a_server_that_cannot_be_reached_gets_nothing() -> None:
    """On a path of GPUs only the middle one has routes to both ends."""
    path = topoplan.load("path:3")
    assert list(find_shares(path, path.ranks, path.ranks).share) == [0, 1, 0]
    ring = topoplan.load("ring:5")
    with pytest.raises(InfeasibleError, match="only routes through other GPUs"):
        find_shares(ring, ring.ranks, ring.ranks)


def test_unknown_repeated_and_missing_devices_are_refused() -> None:
    hosts = equal_hosts(2, 1)
    for workers, servers, why in (
        (["gpu0", "gpu9"], ["cpu0"], "'gpu9' among the workers is no device"),
        (["gpu0"], ["cpu0", "cpu0"], "'cpu0' is 2 times among the servers"),
        (["gpu0"], [], "0 servers"),
    ):
        with pytest.raises(InputError, match=why):
            find_shares(hosts, workers, servers)


@pytest.mark.parametrize(
    "name",
    ["ring:2", "ring:4", "path:3", "star:5", "dgx1", "mesh:3x3", "pcie-2socket", "hypercube:3"],
)
def test_weights_are_exactly_doubly_stochastic_and_contract(name: str) -> None:
    topology = topoplan.load(name)
    edges = neighbour_edges(topology)
    mixing = metropolis_weights(len(topology.ranks), edges)
    rows = mixing.weight
    assert all(sum(row) == 1 for row in rows) and all(
        sum(column) == 1 for column in zip(*rows, strict=True)
    )
    assert all(w >= 0 for row in rows for w in row) and rows == tuple(zip(*rows, strict=True))
    assert {(a, b) for a, row in enumerate(rows) for b, w in enumerate(row) if w and a < b} == set(
        edges
    )
    assert mixing.contraction < 1
    weight = np.array(rows, dtype=float)
    values = np.random.default_rng(0).normal(size=(len(rows), 5))
    apart = np.linalg.norm(values - values.mean(0))
    mixed = weight @ values
    assert np.linalg.norm(mixed - mixed.mean(0)) <= mixing.contraction * apart * (1 + 1e-9)


def test_known_contractions() -> None:
    """A ring of n with weights 1/3: (1 + 2 cos(2 pi / n)) / 3; among all to all the mean is there
    at once.
    """
    for n in (4, 5, 8):
        wanted = max((1 + 2 * np.cos(2 * np.pi / n)) / 3, 1 / 3)
        assert metropolis_weights(n, ring_edges(n)).contraction == pytest.approx(wanted)
    everyone = topoplan.load("pcie-2socket")
    assert metropolis_weights(8, neighbour_edges(everyone)).contraction == pytest.approx(
        0, abs=1e-12
    )
    assert ring_edges(1) == () and ring_edges(2) == ((0, 1),)


def test_a_dgx1_has_four_neighbours_a_gpu() -> None:
    mixing = metropolis_weights(8, neighbour_edges(topoplan.load("dgx1")))
    assert [len(mixing.neighbours(r)) for r in range(8)] == [4] * 8
    assert mixing.weight[0][0] == F(1, 5)


def test_graphs_in_parts_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="rank 2 and rank 0"):
        metropolis_weights(4, [(0, 1), (2, 3)])
    with pytest.raises(InputError, match=r"\(0, 4\) is no edge"):
        metropolis_weights(4, [(0, 4)])
