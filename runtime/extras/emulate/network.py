"""Build a blueprint from unnamed network namespaces, veth pairs and token buckets.

Each namespace is held by a process that dies with this one (PR_SET_PDEATHSIG), and a namespace
takes its cables with it: not even SIGKILL leaves anything behind, and two runs cannot interfere.
Programs used: `unshare` and `nsenter` (util-linux), `ip` and `tc` (iproute2).
"""

import ctypes
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

from ....topo.errors import ExecutionError, TopoplanError
from ....topo.graph import Topology
from .blueprint import Blueprint, blueprint

MTU = 9000  # bytes; jumbo frames: fewer packets for the host to forward
# Bytes that a link may send at once after a pause: with less, short pauses cost rate; with more,
# small messages travel free.
BURST_BYTES = 64 << 10
# Fraction of a link's rate that is left after headers and acknowledgements.
WIRE = 0.99
# Bytes of a burst that a TCP connection uses (measured: plans of six steps and 1 MB take as long as
# with half of it).
BURST_USED = BURST_BYTES // 2
# Queue of a link: eight full socket buffers, so that little is dropped; chosen, not measured.
_QUEUE_BYTES = 16 << 20
_SOCKET_BYTES = "4096 131072 2097152"
_SETTLE_S = 20.0  # for namespaces and routes to come up, on a busy host
# Name of the interface with a rank's identity address; what GLOO_SOCKET_IFNAME is set to.
IDENTITY = "id0"


class EmulationError(TopoplanError):
    """This host lacks what an emulation needs, or a command that makes or changes one has failed.

    The message gives the reason, and the remedy if something is lacking.
    """


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends; a `preexec_fn`."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def why_not() -> str | None:
    """Return why machines cannot be emulated on this host; None if they can."""
    if sys.platform != "linux":
        return f"topologies are emulated with Linux's network namespaces; this is {sys.platform}"
    missing = [name for name in ("ip", "tc", "unshare", "nsenter") if shutil.which(name) is None]
    if missing:
        return (
            f"{', '.join(missing)}: not found; install iproute2 and util-linux "
            "(Debian: apt-get install iproute2 util-linux; in a checkout: sh "
            "scripts/system-packages.sh)"
        )
    attempt = subprocess.run(
        ["unshare", "--net", "true"], capture_output=True, text=True, check=False
    )
    if attempt.returncode:
        return (
            f"no network namespace may be made here ({attempt.stderr.strip() or 'refused'}); run "
            "as root, or with "
            "CAP_SYS_ADMIN and CAP_NET_ADMIN (in a container: --privileged)"
        )
    return None


class Network:
    """An emulated machine, built and closed by `emulate`.

    Methods take a device by its number in `blueprint.devices`, or by its id.
    """

    def __init__(self, plan: Blueprint) -> None:
        self.blueprint = plan
        self._holders: list[subprocess.Popen[bytes]] = []

    def namespace_of(self, device: int) -> str:
        """Return the path of the network namespace of a device, given its number."""
        return f"/proc/{self._holders[device].pid}/ns/net"

    def enter(self, device: int) -> list[str]:
        """Return the command prefix that runs a command in the namespace of a device number."""
        return ["nsenter", f"--net={self.namespace_of(device)}", "--"]

    def enter_rank(self, rank: int) -> list[str]:
        """Return the command prefix that runs a command in a rank's namespace."""
        return self.enter(self.blueprint.home[rank])

    def cut(self, a: str, b: str) -> None:
        """Cut the cable between two devices, given by id, in both directions.

        Raise KeyError if there is none.
        """
        self._change_ends(a, b, "ip", lambda name: f"link set {name} down")

    def mend(self, a: str, b: str) -> None:
        """Restore a cut cable between two devices, given by id; raise KeyError if there is none."""
        self._change_ends(a, b, "ip", lambda name: f"link set {name} up")
        # The kernel has dropped the routes through an interface that went down, and kept the rules.
        for device in map(self.blueprint.devices.index, (a, b)):
            self._batch(device, "ip", self._list_routes(device))

    def slow_down(self, a: str, b: str, rate_bps: int) -> None:
        """Set the rate of the cable between two devices, given by id, to `rate_bps` (bit/s).

        Raise KeyError if there is none.
        """
        self._change_ends(a, b, "tc", lambda name: describe_bucket(name, rate_bps))

    def scale_rates(self, a: str, b: str, factor: Fraction) -> None:
        """Set the rates of the cable between two devices, by id, to `factor` of the original.

        Raise KeyError if there is none.
        """
        x, y = (self.blueprint.devices.index(d) for d in (a, b))
        cable = self.blueprint.cable_between(x, y)
        for device in (x, y):
            if (rate := cable.rate_out_of(device)) is not None:
                name, scaled = f"to{cable.other(device)}", max(8000, round(rate * factor))
                self._batch(device, "tc", [describe_bucket(name, scaled)])

    def _change_ends(self, a: str, b: str, program: str, line: Callable[[str], str]) -> None:
        """Run a line of a program, given the interface's name, at both ends of a cable."""
        x, y = (self.blueprint.devices.index(d) for d in (a, b))
        self.blueprint.cable_between(x, y)  # KeyError, before anything changes
        for device, peer in ((x, y), (y, x)):
            self._batch(device, program, [line(f"to{peer}")])

    def build(self) -> None:
        """Create the namespaces, cables and routes, and check them.

        Raise EmulationError if the kernel refuses, ExecutionError if a rate or route is wrong.
        """
        plan = self.blueprint
        for _ in plan.devices:
            self._holders.append(
                subprocess.Popen(
                    ["unshare", "--net", "sleep", "infinity"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    preexec_fn=die_with_parent,
                    start_new_session=True,
                )
            )
        self._await_namespaces()
        pids = [holder.pid for holder in self._holders]
        run_lines(
            ["ip", "-batch", "-"],
            [
                f"link add name to{c.b} mtu {MTU} netns {pids[c.a]} type veth peer name to{c.a} "
                f"mtu {MTU} netns {pids[c.b]}"
                for c in plan.cables
            ],
        )
        for device in range(len(plan.devices)):
            self._configure(device)
        self._check()

    def _await_namespaces(self) -> None:
        outside = Path("/proc/self/ns/net").readlink()
        deadline = time.monotonic() + _SETTLE_S
        for holder in self._holders:
            while True:
                if holder.poll() is not None:
                    raise EmulationError(why_not() or "a network namespace could not be made")
                if Path(f"/proc/{holder.pid}/ns/net").readlink() != outside:
                    break
                if time.monotonic() > deadline:
                    raise EmulationError(f"no network namespace within {_SETTLE_S:g} s")
                time.sleep(0.002)

    def _configure(self, device: int) -> None:
        settings = list_settings()
        run_lines(
            [*self.enter(device), "sh", "-s"],
            [
                f"echo '{value}' > /proc/sys/net/ipv4/{name} || exit 1"
                for name, value in settings.items()
            ],
        )
        lines = ["link set lo up"]
        if (own := self._find_identity(device)) is not None:
            lines += [
                f"link add name {IDENTITY} type veth peer name {IDENTITY}-end",
                f"addr add {own}/32 dev {IDENTITY}",
                f"link set {IDENTITY}-end up",
                f"link set {IDENTITY} up",
            ]
        buckets = []
        for cable in self.blueprint.cables:
            if device in (cable.a, cable.b):
                name = f"to{cable.other(device)}"
                lines += [f"addr add {cable.address(device)}/31 dev {name}", f"link set {name} up"]
                if (rate := cable.rate_out_of(device)) is not None:
                    buckets.append(describe_bucket(name, rate))
        self._batch(device, "ip", lines)
        # The other end may not be up yet, which does not matter: routes only need this one.
        self._batch(device, "ip", [*self._list_rules(device), *self._list_routes(device)])
        self._batch(device, "tc", buckets)

    def _list_rules(self, device: int) -> list[str]:
        """Return the lines that give sources whose packets leave the usual route tables."""
        sources = dict.fromkeys(hop.src for hop in self.blueprint.hops.get(device, ()))
        return [
            f"rule add from {self.blueprint.identity(src)} lookup {_find_table(src)}"
            for src in sources
            if src is not None
        ]

    def _list_routes(self, device: int) -> list[str]:
        plan, own = self.blueprint, self._find_identity(device)
        lines = []
        for hop in plan.hops.get(device, ()):
            via = " ".join(
                f"nexthop via {plan.cable_between(device, x).address(x)} dev to{x}" for x in hop.via
            )
            line, via = f"route replace {plan.identity(hop.dst)}/32", f" {via}"
            if hop.src is None:
                lines.append(line + (f" src {own}" if own else "") + via)
            else:
                lines.append(f"{line} table {_find_table(hop.src)}{via}")
        return lines

    def _find_identity(self, device: int) -> str | None:
        """Return the address of the rank on a device, if it has one."""
        home = self.blueprint.home
        return self.blueprint.identity(home.index(device)) if device in home else None

    def _batch(self, device: int, program: str, lines: Sequence[str]) -> None:
        if lines:
            run_lines([*self.enter(device), program, "-batch", "-"], lines)

    def _check(self) -> None:
        """Raise ExecutionError if a cable has a wrong rate or ranks cannot reach each other."""
        plan = self.blueprint
        for device, name in enumerate(plan.devices):
            rates = {
                q["dev"]: q["options"]["rate"]
                for q in json.loads(
                    run_lines([*self.enter(device), "tc", "-j", "qdisc", "show"], []) or "[]"
                )
                if q.get("kind") == "tbf"
            }
            for cable in plan.cables:
                if device in (cable.a, cable.b) and (rate := cable.rate_out_of(device)) is not None:
                    # tc reports bytes per second, rounded.
                    got = rates.get(f"to{cable.other(device)}", 0) * 8
                    if abs(got - rate) > max(8, rate // 1000):
                        raise ExecutionError(
                            f"the link {name} -> {plan.devices[cable.other(device)]} has {got} "
                            f"bit/s where {rate} were asked for"
                        )
        self._check_reach()

    def _check_reach(self) -> None:
        plan = self.blueprint
        addresses = [plan.identity(rank) for rank in range(len(plan.home))]
        # All at once, since each waits for the others' connections.
        probes = [
            subprocess.Popen(
                [
                    *self.enter_rank(rank),
                    sys.executable,
                    "-I",
                    Path(__file__).with_name("reach.py"),
                    str(rank),
                    *addresses,
                ],
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=die_with_parent,
            )
            for rank in range(len(plan.home))
        ]
        unreached = []
        for rank, probe in enumerate(probes):
            printed, _ = probe.communicate(timeout=2 * _SETTLE_S)
            unreached += [
                f"{plan.topology.ranks[rank]} -> {plan.topology.ranks[other]}"
                for other in (
                    json.loads(printed) if probe.returncode == 0 else range(len(addresses))
                )
            ]
        if unreached:
            more = f" and {len(unreached) - 5} more" if len(unreached) > 5 else ""
            raise ExecutionError(
                f"the emulated machine does not connect {', '.join(unreached[:5])}{more}"
            )

    def close(self) -> None:
        """End the holder processes; the kernel removes everything in their namespaces."""
        for holder in self._holders:
            holder.kill()
        for holder in self._holders:
            holder.wait()
        self._holders = []


def _find_table(source: int) -> int:
    """Return the routing table of a source rank; the kernel itself uses those up to 255."""
    return 1000 + source


def list_settings() -> dict[str, str]:
    """Return the kernel settings of each namespace: values by path below /proc/sys/net/ipv4."""
    return {
        "ip_forward": "1",
        "tcp_congestion_control": "reno",
        "tcp_rmem": _SOCKET_BYTES,
        "tcp_wmem": _SOCKET_BYTES,
        "conf/all/rp_filter": "0",
        "conf/default/rp_filter": "0",
        "tcp_no_metrics_save": "1",
        "tcp_slow_start_after_idle": "0",
        # Connections, not pairs of hosts, are spread over equal paths.
        "fib_multipath_hash_policy": "1",
    }


def describe_bucket(interface: str, rate_bps: int, burst_bytes: int = BURST_BYTES) -> str:
    """Return the line for `tc` that limits what leaves `interface` to `rate_bps` bit/s.

    After a pause `burst_bytes` may leave at once, or the bytes of a millisecond if they are more.
    """
    return (
        f"qdisc replace dev {interface} root tbf rate {rate_bps}bit burst "
        # At least the bytes of a millisecond, so that late timers cost nothing.
        f"{max(burst_bytes, rate_bps // 8 // 1000)} limit {_QUEUE_BYTES}"
    )


def run_lines(command: list[str], lines: Sequence[str]) -> str:
    """Run a command with `lines` as its standard input and return its output.

    Raise EmulationError if it fails.
    """
    done = subprocess.run(
        command,
        input="".join(line + "\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        shown = " ".join(x for x in command if not x.startswith("--net"))
        raise EmulationError(
            f"{shown}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}"
        )
    return done.stdout


@contextmanager
def emulate(
    topology: Topology, slowest_bps: Fraction | None = None, order: tuple[int, ...] | None = None
) -> Iterator[Network]:
    """Emulate a machine for as long as the `with` block lasts.

    The slowest link gets `slowest_bps` bit/s (None: as much as this host's cores can emulate), the
    others in proportion; `order[i]` is the GPU number of rank i. Raise InputError, InfeasibleError
    (a rank cannot reach another), EmulationError or ExecutionError.
    """
    with emulate_blueprint(blueprint(topology, slowest_bps, order)) as network:
        yield network


@contextmanager
def emulate_blueprint(built: Blueprint) -> Iterator[Network]:
    """Emulate the machine of a blueprint for as long as the `with` block lasts.

    Call it from the main thread, since namespaces end with their thread. Raise EmulationError if
    the kernel refuses, ExecutionError if a rate or route is wrong.
    """
    network = Network(built)
    if reason := why_not():
        raise EmulationError(reason)
    try:
        network.build()
        yield network
    finally:
        network.close()
