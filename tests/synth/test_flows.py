"""Messages that begin at any time and share links equally."""

from __future__ import annotations

import heapq
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from star_scatter import STAR, scatter_over_star

from topoplan.synth.cost import flows
from topoplan.synth.cost.affine import shared_s_per_GB
from topoplan.synth.cost.flows import Flows
from topoplan.synth.cost.host_costs import HostCosts
from topoplan.synth.cost.sharing import end_messages
from topoplan.synth.cost.simulate import predict_us

FREE = HostCosts(0, 0, 0, 0, 0, 0, 0, cores=64, wire=1.0)
# When a message begins in us, the links that it crosses, its size in bytes.
Message = tuple[float, tuple[int, ...], float]


def play(messages: list[Message], us_per_byte: list[float], burst_bytes: float = 0) -> list[float]:
    """Return when each message has left, in us."""
    under_way, ends = Flows(us_per_byte, burst_bytes), [0.0] * len(messages)
    events = [(begin_us, -1, number) for number, (begin_us, _, _) in enumerate(messages)]
    heapq.heapify(events)
    while events or under_way.changed_us is not None:
        changed_us = under_way.changed_us
        if changed_us is not None and (not events or events[0][0] > changed_us):
            for end_us, number in under_way.settle():
                heapq.heappush(events, (end_us, 1, number))
            continue
        now_us, kind, number = heapq.heappop(events)
        if kind < 0:
            under_way.begin(number, *messages[number][1:], now_us)
        elif under_way.ends_us.get(number) == now_us:
            under_way.end(number, now_us)
            ends[number] = now_us
    return ends


def draw_messages(random: Random, count: int, links: int) -> list[Message]:
    return [
        (
            random.choice([0.0, 0.0, random.uniform(0, 50)]),
            tuple(random.sample(range(links), random.randint(1, min(3, links)))),
            random.uniform(1, 100),
        )
        for _ in range(count)
    ]


def test_a_message_that_is_held_up_elsewhere_leaves_its_part_to_the_others() -> None:
    """Two messages leave by one link of 2 bytes per us, one of them over a link of half a byte."""
    ends = play([(0, (0, 1), 3), (0, (0,), 3)], [0.5, 2.0])
    assert ends == pytest.approx([6, 2])


def test_one_that_begins_later_takes_its_part_from_then_on() -> None:
    """Alone for 2 us, together until the first has its last 2 bytes through, alone again."""
    ends = play([(0, (0,), 4), (2, (0,), 4)], [1.0])
    assert ends == pytest.approx([6, 8])


@pytest.mark.parametrize("seed", range(20))
def test_messages_that_begin_together_end_as_those_of_a_tick(seed: int) -> None:
    random = Random(seed)
    messages: list[Message] = [
        (0.0, links, size) for _, links, size in draw_messages(random, 20, 6)
    ]
    us_per_byte = [random.uniform(0.1, 2) for _ in range(6)]
    crossed = np.array([[*links, *[6] * (3 - len(links))] for _, links, _ in messages])
    sizes = np.array([size for _, _, size in messages])
    expected = end_messages(sizes, crossed, np.array([*us_per_byte, 0.0]))
    assert play(messages, us_per_byte) == pytest.approx(expected.tolist())


@pytest.mark.parametrize("seed", range(20))
def test_links_never_carry_more_than_they_can_and_are_not_idle_for_nothing(seed: int) -> None:
    """On a single link every order of service keeps the link busy: the last message of a busy time
    ends when all bytes are through.
    """
    random = Random(seed)
    messages = draw_messages(random, 30, 4)
    us_per_byte = [random.uniform(0.1, 2) for _ in range(4)]
    ends = play(messages, us_per_byte)
    for (begin_us, links, size), end_us in zip(messages, ends, strict=True):
        assert end_us >= begin_us + size * max(us_per_byte[x] for x in links) * (1 - 1e-9)
    for link, us in enumerate(us_per_byte):
        over = [(m, end) for m, end in zip(messages, ends, strict=True) if link in m[1]]
        first = min((m[0] for m, _ in over), default=0.0)
        last = max((end for _, end in over), default=0.0)
        assert last - first >= sum(m[2] for m, _ in over) * us * (1 - 1e-9)
    alone: list[Message] = [(begin_us, (0,), size) for begin_us, _, size in messages]
    through_us = 0.0
    for begin_us, _, size in sorted(alone):
        through_us = max(through_us, begin_us) + size * us_per_byte[0]
    assert max(play(alone, us_per_byte)) == pytest.approx(through_us)


def test_rates_that_are_computed_seldom_are_nearly_those_computed_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = Random(1)
    messages = draw_messages(random, 300, 12)
    us_per_byte = [random.uniform(0.5, 1) for _ in range(12)]
    seldom = play(messages, us_per_byte)
    monkeypatch.setattr(flows, "_MANY", len(messages))
    always = play(messages, us_per_byte)
    assert seldom != always
    assert max(seldom) == pytest.approx(max(always), rel=0.01)
    off = [abs(a / b - 1) for a, b in zip(seldom, always, strict=True)]
    assert sum(off) / len(off) < 0.02


def test_an_idle_link_lets_a_burst_pass_and_saves_up_for_the_next() -> None:
    us_per_byte, burst_bytes = [1.0], 10
    first, second, third = play(
        [(0, (0,), 14), (6, (0,), 14), (100, (0,), 14)], us_per_byte, burst_bytes
    )
    assert first == pytest.approx(4)  # all but the burst takes its time
    assert second == pytest.approx(6 + 12)  # 2 us of rest are 2 bytes
    assert third == pytest.approx(104)


def test_predictions_with_host_costs_share_links_as_those_without_do() -> None:
    """A large message beside three small ones: 7/12 of the buffer's time by equal sharing."""
    schedule = scatter_over_star()
    expected_us = float(shared_s_per_GB(schedule, STAR)) * 1e-3 * 12_000_000
    assert predict_us(schedule, STAR, FREE, 12_000_000) == pytest.approx(expected_us)


def test_messages_of_a_pair_of_ranks_go_one_after_the_other() -> None:
    """A pair has one connection: four segments of a message take as long as the message, and leave
    an even part of a link to another pair.
    """
    schedule = scatter_over_star()
    whole = predict_us(schedule, STAR, FREE, 12_000_000)
    cut = predict_us(replace(schedule, segments=4), STAR, FREE, 12_000_000)
    assert whole is not None
    assert cut is not None
    assert cut == pytest.approx(whole, rel=0.02)
