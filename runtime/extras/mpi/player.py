"""Run programs over MPI: small ones in waves, others as messages come; and run MPI's collectives.

In waves (dependencies.py) all messages of a tick start at once and are awaited at once, with one
wait per wave, which another thread ends at the deadline: that takes the host less time than
handling each message as it comes.

Otherwise every instruction runs as soon as those that it depends on have ended, in no fixed order.
Instructions that touch the same elements keep their order (dependencies.py), so the result has the
same bits as in the program's own order.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch

from ....topo.errors import TopoplanError
from ...program.contract import AWAIT, LOCAL, SEND, Operation, Player, PlayError, Stamp
from ...program.instructions import Program
from ...ranks.faults import Call, Faults
from .alarm import Alarm
from .channel import MpiChannel
from .dependencies import Wave

# After adding or copying at least this many bytes, messages are tested before the next operation:
# MPI moves them only when it is called.
_LARGE_BYTES = 32 << 10
# Limit on ended requests in the list to wait for: MPI skips them, and removing each costs more.
_MAX_ENDED = 64
# Bytes of a message that MPI counts, as a number of 32 bits.
_MAX_COUNT = (1 << 31) - 1
# Polling interval while cancelling an overdue call: it may have started another wave, to be
# cancelled in turn.
_CANCEL_POLL_S = 0.01
# Marks instead of a message's node: the wake-up request, and a message that has ended.
_WAKE_UP, _ENDED = -1, -2
_LATE = "it did not complete"
# Time before this process ends, in which others can report where they are stuck: mpirun ends all
# ranks when the first one ends.
_LAST_WORDS_S = 1.0


class Requests:
    """A program's messages as MPI's persistent requests, and its local actions, on fixed buffers.

    The nodes are the operations without the waits, renumbered: a message (with a post and a
    request) or a local action. `node_of` maps numbers of operations to those of nodes; `sizes` has
    the bytes that each action works on. `device` is the GPU whose memory is sent, None for host
    memory.
    """

    def __init__(
        self, channel: MpiChannel, program: Program, operations: Sequence[Operation]
    ) -> None:
        self.channel = channel
        numbers = [number for number, x in enumerate(operations) if x[0] != AWAIT]
        self.node_of = {number: node for node, number in enumerate(numbers)}
        kept = [operations[number] for number in numbers]
        posts = iter(program.posts)
        self.posts = [None if code == LOCAL else next(posts) for code, *_ in kept]
        # One by one, so that those made before an error are freed.
        self.requests: list[Any] = []
        self.requests.extend(None if x[0] == LOCAL else _make_request(channel, *x) for x in kept)
        self.actions: list[Any] = [a if code == LOCAL else None for code, a, _, _ in kept]
        self.sizes = [size if code == LOCAL else 0 for code, _, _, size in kept]
        # MPI stores only addresses: the memory must live as long as the requests.
        self._views = [views for code, views, _, _ in kept if code != LOCAL]
        self.device = next((v[0].device for v in self._views if v[0].device.type == "cuda"), None)

    def is_post(self, node: int, kind: str) -> bool:
        """Return whether a node is a message of this kind, "send" or "receive"."""
        post = self.posts[node]
        return post is not None and post.kind == kind

    def put_receives_first(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes, which are all messages, with receives before sends."""
        return sorted(nodes, key=lambda node: self.is_post(node, "send"))

    def cancel(self, nodes: Iterable[int]) -> None:
        """Cancel the receives among `nodes`; on return nothing arrives in their memory."""
        for node in nodes:
            if self.is_post(node, "receive"):
                with suppress(RuntimeError):
                    self.requests[node].Cancel()
                    self.requests[node].Wait()

    def explain(self, stuck: Iterable[int], begun: set[int], reason: str) -> PlayError:
        """Return the error for the `stuck` nodes; it names the earliest message of them.

        `begun` are all nodes that have been started, `reason` is for the text. If no stuck node is
        a message, the error names the first message begun.
        """
        posts = [post for node, post in enumerate(self.posts) if post is not None and node in begun]
        first = [post for node in sorted(stuck) if (post := self.posts[node]) is not None]
        return PlayError((first or posts)[0], posts, reason)

    def __del__(self) -> None:
        mpi = self.channel.mpi
        if not mpi.Is_finalized():
            for request in self.requests:
                if request is not None:
                    with suppress(mpi.Exception):
                        request.Free()


def _make_request(
    channel: MpiChannel, code: int, views: Sequence[torch.Tensor], peer: int, tag: int
) -> Any:
    mpi, view = channel.mpi, views[0]
    make = channel.comm.Send_init if code == SEND else channel.comm.Recv_init
    tag %= channel.max_tag  # unique among the messages of a call
    memory = mpi.buffer.fromaddress(view.data_ptr(), view.nbytes)
    if view.nbytes <= _MAX_COUNT:
        return make([memory, view.nbytes, mpi.BYTE], peer, tag)
    whole = _make_long_type(mpi, view.nbytes)
    request = make([memory, 1, whole], peer, tag)
    whole.Free()  # MPI holds it until the request is freed
    return request


def _make_long_type(mpi: Any, nbytes: int) -> Any:
    """Return MPI's type of so many bytes, more than it counts."""
    blocks, rest = divmod(nbytes, _MAX_COUNT)
    block = mpi.BYTE.Create_contiguous(_MAX_COUNT)
    whole = mpi.Datatype.Create_struct(
        [blocks, rest], [0, blocks * _MAX_COUNT], [block, mpi.BYTE]
    ).Commit()
    block.Free()
    return whole


def _renew_wake_up(channel: MpiChannel, active: list[Any], deadline: float) -> None:
    """Re-post the wake-up request (`active[0]`), which has ended.

    Raise RuntimeError if the wake-up was sent for this call, rather than late for an earlier one.
    """
    channel.post_wake_up()
    active[0] = channel.wake_up_request
    if time.monotonic() > deadline:
        raise RuntimeError(_LATE)


class PlayerAsTheyCome:
    """Runs a program over MPI, each operation as soon as those that it depends on have ended.

    `dependencies` are those of the program's instructions, by their numbers.
    """

    def __init__(self, requests: Requests, dependencies: Sequence[Sequence[int]]) -> None:
        self.channel, self._requests = requests.channel, requests
        self._alarm = Alarm(self.channel.wake_up)
        node_of = requests.node_of
        self._needs = [len(dependencies[number]) for number in node_of]
        self._followers: list[list[int]] = [[] for _ in node_of]
        for number, node in node_of.items():
            for before in dependencies[number]:
                self._followers[node_of[before]].append(node)
        self._is_large = [size >= _LARGE_BYTES for size in requests.sizes]
        first = [node for node, needs in enumerate(self._needs) if not needs]
        self._first_posts = requests.put_receives_first(
            node for node in first if requests.actions[node] is None
        )
        self._first_local = [node for node in first if requests.actions[node] is not None]

    def play(self, deadline: float, stamp: Stamp | None = None) -> None:
        """Run the program once; `stamp`, if given, times its messages.

        On CPUs it has ended when this returns. Raise PlayError, with the program's earliest message
        that did not end, at `deadline` (time.monotonic), or if a call of MPI fails.
        """
        active: list[Any] = [self.channel.wake_up_request]
        whose: list[int] = [_WAKE_UP]
        needs = self._needs.copy()
        self._alarm.deadline = deadline if self.channel.can_wait else 0.0
        try:
            self._play(needs, active, whose, deadline, stamp)
        except TopoplanError:
            raise
        except RuntimeError as error:
            stuck = [node for node in whose if node >= 0]
            self._requests.cancel(stuck)
            raise self._requests.explain(
                stuck, {node for node, count in enumerate(needs) if not count}, str(error)
            ) from error
        finally:
            self._alarm.stop(deadline)

    def _play(  # noqa: C901, PLR0912 (the inner loop: calls take longer)
        self,
        needs: list[int],
        active: list[Any],
        whose: list[int],
        deadline: float,
        stamp: Stamp | None,
    ) -> None:
        requests, actions = self._requests.requests, self._requests.actions
        followers, is_large, device = self._followers, self._is_large, self._requests.device
        start, test = self.channel.mpi.Prequest.Startall, self.channel.mpi.Prequest.Testsome
        wait = (
            self.channel.mpi.Prequest.Waitsome
            if self.channel.can_wait
            else lambda some: self._poll(some, deadline)
        )
        posts, ready, at, in_flight = self._first_posts.copy(), self._first_local.copy(), 0, 0
        while True:
            # Ready nodes, in the order in which they became ready. Messages start before long
            # actions.
            while at < len(ready):
                node = ready[at]
                if is_large[node] and posts:
                    break
                at += 1
                actions[node]()
                for after in followers[node]:
                    needs[after] -= 1
                    if not needs[after]:
                        (ready if actions[after] else posts).append(after)
                if is_large[node]:
                    break
            if posts:
                if stamp is not None:
                    self._stamp(stamp, posts, "send")
                if device is not None:  # MPI does not order itself by streams
                    torch.cuda.current_stream(device).synchronize()
                starting = [requests[node] for node in posts]
                start(starting)
                active += starting
                whose += posts
                in_flight += len(posts)
                posts = []
            if not in_flight:
                if at == len(ready):
                    return
                continue
            ended = (wait if at == len(ready) else test)(active)
            if not ended:
                continue
            if stamp is not None:
                self._stamp(stamp, [whose[place] for place in ended], "receive")
            for place in ended:
                node = whose[place]
                if node == _WAKE_UP:  # sent late, for an earlier call
                    _renew_wake_up(self.channel, active, deadline)
                    continue
                in_flight -= 1
                whose[place] = _ENDED
                for after in followers[node]:
                    needs[after] -= 1
                    if not needs[after]:
                        (ready if actions[after] else posts).append(after)
            if len(active) > in_flight + _MAX_ENDED:
                left = [place for place, node in enumerate(whose) if node != _ENDED]
                active[:], whose[:] = [active[x] for x in left], [whose[x] for x in left]

    def _poll(self, active: list[Any], deadline: float) -> list[int]:
        """Test for messages until one has ended, if no other thread may send a wake-up."""
        while not (ended := self.channel.mpi.Prequest.Testsome(active)):
            if time.monotonic() > deadline:
                raise RuntimeError(_LATE)
            if self.channel.yields:
                os.sched_yield()
        return list(ended)

    def _stamp(self, stamp: Stamp, nodes: Sequence[int], kind: str) -> None:
        for node in nodes:
            post = self._requests.posts[node] if node >= 0 else None
            if post is not None and post.kind == kind:
                stamp(post)


# Requests that start together, receives first; the receives among them, and a status for each; the
# sends; the actions once all have ended; and the nodes of the requests.
_BoundWave = tuple[list[Any], list[Any], list[Any], list[Any], list[Any], list[int]]


def can_play_in_waves(requests: Requests) -> bool:
    """Return whether a PlayerInWaves may run a program with these requests.

    It may if another thread can end waits, and nothing has to wait for a GPU's stream.
    """
    return requests.channel.can_wait and requests.device is None


class PlayerInWaves:
    """Runs a small program over MPI wave by wave; `other` is the player that runs timed calls.

    `requests` are its messages and local actions on fixed buffers, `waves` those of find_waves.
    """

    def __init__(self, requests: Requests, waves: Sequence[Wave], other: Player) -> None:
        self._requests, self._other = requests, other
        self._alarm = Alarm(self._interrupt)
        self._waves = [self._bind(wave) for wave in waves]
        self._wave: _BoundWave | None = None
        prequest = requests.channel.mpi.Prequest
        self._calls = prequest.Startall, prequest.Waitall, prequest.Testall

    def _bind(self, wave: Wave) -> _BoundWave:
        all_of, node_of = self._requests, self._requests.node_of
        nodes = all_of.put_receives_first(node_of[number] for number in wave.posts)
        requests = [all_of.requests[node] for node in nodes]
        receives = sum(all_of.is_post(node, "receive") for node in nodes)
        return (
            requests,
            requests[:receives],
            [all_of.channel.mpi.Status() for _ in range(receives)],
            requests[receives:],
            [all_of.actions[node_of[number]] for number in wave.local],
            nodes,
        )

    def play(self, deadline: float, stamp: Stamp | None = None) -> None:
        """Run the program once; with `stamp`, which times messages, by the other player.

        Raise PlayError, with the earliest message that did not end, at `deadline` (time.monotonic),
        or if a call of MPI fails.
        """
        if stamp is not None:
            self._other.play(deadline, stamp)
            return
        (start, wait, test), alarm = self._calls, self._alarm
        stuck: list[int] = []
        self._wave = None
        alarm.deadline = deadline
        try:
            for wave in self._waves:
                requests, receives, statuses, sends, actions, nodes = wave
                if requests:
                    start(requests)
                    self._wave = wave
                    wait(receives, statuses)
                    if alarm.struck == deadline:
                        stuck = [
                            nodes[place]
                            for place, status in enumerate(statuses)
                            if status.Is_cancelled()
                        ]
                        if stuck:
                            raise RuntimeError(_LATE)
                    if not test(sends):
                        self._await_sends(sends, nodes[len(receives) :], stuck, deadline)
                for action in actions:
                    action()
        except TopoplanError:
            raise
        except RuntimeError as error:
            alarm.stop(deadline)
            # Open MPI fails if a request is cancelled twice.
            if self._wave is not None and alarm.struck != deadline:
                self._requests.cancel(self._wave[-1])
            raise self._requests.explain(stuck, self._list_begun(), str(error)) from error
        finally:
            alarm.stop(deadline)

    def _interrupt(self) -> None:
        """End the call's waits from another thread.

        Receives are cancelled; the wake-up request ends the wait for sends.
        """
        self._requests.channel.wake_up()
        cancelled: _BoundWave | None = None
        while self._alarm.deadline:
            wave = self._wave
            if wave is not None and wave is not cancelled:
                cancelled = wave
                for request in wave[1]:
                    with suppress(RuntimeError):  # it has ended
                        request.Cancel()
            time.sleep(_CANCEL_POLL_S)

    def _await_sends(
        self, sends: list[Any], nodes: list[int], stuck: list[int], deadline: float
    ) -> None:
        """Wait for sends, which MPI does not cancel, until the wake-up request ends the wait.

        `stuck` receives the sends that did not end.
        """
        channel = self._requests.channel
        active = [channel.wake_up_request, *sends]
        left = dict(enumerate(nodes, 1))
        while left:
            for place in channel.mpi.Prequest.Waitsome(active) or ():
                if place:
                    del left[place]
                else:
                    stuck[:] = left.values()
                    _renew_wake_up(channel, active, deadline)
        stuck.clear()

    def _list_begun(self) -> set[int]:
        begun: set[int] = set()
        for wave in self._waves:
            begun.update(wave[-1])
            if wave is self._wave:
                break
        return begun


class CollectivePlayer:
    """Runs MPI's own collectives over one group, one at a time, each with a deadline.

    `faults` has the deadlines and call numbers, and finds the rank to blame.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._call: tuple[str, int] | None = None
        self._alarm = Alarm(self._end)

    def run_collective(
        self,
        collective: Callable[[], object],
        what: str,
        finish: Callable[[], object] | None = None,
        number: int | None = None,
    ) -> None:
        """Run `collective`, a call of MPI, then `finish`; `what` describes it in errors.

        `number` is the call's number in its group if it was drawn before (None: the next one).
        Raise ExecutionError if it fails; if it is overdue, print which rank is to blame, and end
        this process with exit code 1.
        """
        alarm = self._alarm
        number, deadline = self._faults.admit(number)
        self._call = what, number
        alarm.deadline = deadline
        try:
            collective()
        except TopoplanError:
            raise
        except RuntimeError as error:
            raise self._faults.stuck_in_stock(Call(what, number, deadline), error) from error
        finally:
            alarm.stop(deadline)
        if finish is not None:
            finish()

    def _end(self) -> None:
        """End the process, with a line that says which rank is to blame."""
        if self._call is not None:
            error = self._faults.stuck_in_stock(
                Call(*self._call, self._alarm.struck), RuntimeError("it did not end")
            )
            # The end of the line with it: other ranks write there too.
            print(f"topoplan: {error}\n", end="", file=sys.stderr, flush=True)
            time.sleep(_LAST_WORDS_S)
            os._exit(1)
