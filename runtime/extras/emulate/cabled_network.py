"""Emulate hosts that cables join, by network namespaces, veth pairs, bridges and rate limits.

Unlike `Network`, which gives all pairs of ranks a route, a host reaches only what its cables lead
to: nothing forwards. Each host has its own name, which it resolves to its address in the management
network, and its own view of /sys, as a separate machine would have.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

from ...ranks.launch import READY
from ...ranks.machine import HOST
from .cabling import MANAGEMENT_PORT, CablePlan, Cabling, Port
from .network import (
    EmulationError,
    Network,
    describe_bucket,
    die_with_parent,
    list_settings,
    run_lines,
    why_not,
)

_PORT = 29500  # torchrun's; the network is this machine's own
# Rate of the management network: 1 Gbit/s, as such ports mostly have, but a tenth for emulation.
_MANAGEMENT_bps = 100_000_000
_MANAGEMENT_MTU = 1500  # bytes; Ethernet's default
# Start a device of its own: name, files and mounts are private, and /sys shows its interfaces.
_BECOME = (
    'hostname "$1" && mount -t sysfs sysfs /sys && mount --bind "$2" /etc/hosts && '
    "exec sleep infinity"
)


class CabledNetwork(Network):
    """An emulated machine of hosts and cables, built and closed by `emulate_cabling`.

    Methods take a device by its number, or by the name of a host or switch. `plan` is what to
    build; `folder` is for files that the hosts share. With `opens_management`, hosts also reach
    each other through the management network.
    """

    def __init__(self, plan: Cabling, folder: Path, *, opens_management: bool = False) -> None:
        super().__init__(plan.as_blueprint())
        self.cabling, self._folder, self._opens = plan, folder, opens_management
        self._head = len(plan.devices)

    def enter(self, device: int) -> list[str]:
        """Return the command prefix that runs a command in the namespace of a device number."""
        holder = self._holders[device].pid
        return ["nsenter", f"--target={holder}", "--net", "--uts", "--mount", "--wd=.", "--"]

    def list_variables(self, rank: int, folder: Path) -> dict[str, str]:
        """Return the environment variables to add for a rank, as torchrun would set them.

        The store is on the head node. `folder` is shared by the run's ranks. Nothing describes the
        machine; TOPOPLAN_HOST tells hosts apart, since they share this host's kernel.
        """
        seats = self.cabling.seats
        host = seats[rank]
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(seats[:rank].count(host)),
            "WORLD_SIZE": str(len(seats)),
            "LOCAL_WORLD_SIZE": str(seats.count(host)),
            "MASTER_ADDR": self.cabling.management_address(None),
            "MASTER_PORT": str(_PORT),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            **self.list_host_variables(rank, folder),
        }

    def list_host_variables(self, rank: int, folder: Path) -> dict[str, str]:
        """Return the variables that only emulation needs: the host's name and the shared folder."""
        return {HOST: self.cabling.hosts[self.cabling.seats[rank]], READY: str(folder)}

    def build(self) -> None:
        """Create namespaces, cables and switches; raise EmulationError if the kernel refuses."""
        plan = self.cabling
        hosts, head = self._folder / "hosts", plan.management_address(None)
        named = {head: "head"} | {
            plan.management_address(i): name for i, name in enumerate(plan.hosts)
        }
        hosts.write_text(
            "127.0.0.1 localhost\n"
            # torch looks up the names of IPv4 peers by their mapped IPv6 addresses
            + "".join(f"{ip} {name}\n::ffff:{ip} {name}\n" for ip, name in named.items()),
            encoding="utf-8",
        )
        self._start_namespaces([*plan.devices, "head"], hosts)
        pids = [holder.pid for holder in self._holders]
        lines = [
            f"link add name {x.a.name} mtu {x.a.mtu} netns {pids[x.a.device]} type veth "
            f"peer name {x.b.name} mtu {x.b.mtu} netns {pids[x.b.device]}"
            for x in plan.cables
        ]
        lines += [
            f"link add name {MANAGEMENT_PORT} mtu {_MANAGEMENT_MTU} netns {pids[host]} type veth "
            f"peer name host{host} mtu {_MANAGEMENT_MTU} netns {pids[self._head]}"
            for host in range(len(plan.hosts))
        ]
        run_lines(["ip", "-batch", "-"], lines)
        self._configure_head()
        for device in range(len(plan.devices)):
            self._configure(device)
        self._serve_rendezvous()

    def _start_namespaces(self, names: Sequence[str], hosts: Path) -> None:
        """Start a process in a namespace of its own for each name, with `hosts` as /etc/hosts."""
        for name in names:
            self._holders.append(
                subprocess.Popen(
                    [
                        "unshare",
                        "--net",
                        "--uts",
                        "--mount",
                        "sh",
                        "-c",
                        _BECOME,
                        "sh",
                        name,
                        hosts,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    preexec_fn=die_with_parent,
                    start_new_session=True,
                )
            )
        self._await_namespaces()

    def _serve_rendezvous(self) -> None:
        self._holders.append(
            subprocess.Popen(
                [
                    *self.enter(self._head),
                    sys.executable,
                    str(Path(__file__).with_name("rendezvous.py")),
                    self.cabling.management_address(None),
                    str(_PORT),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
                start_new_session=True,
            )
        )

    def _configure_head(self) -> None:
        plan = self.cabling
        lines = [
            "link set lo up",
            "link add name br0 type bridge",
            f"addr add {plan.management_address(None)}/16 dev br0",
            "link set br0 up",
        ]
        for host in range(len(plan.hosts)):
            lines += [f"link set host{host} master br0", f"link set host{host} up"]
        self._batch(self._head, "ip", lines)
        if not self._opens:
            # A host reaches the head node, and no other host.
            isolated = [f"link set dev host{i} isolated on" for i in range(len(plan.hosts))]
            self._batch(self._head, "bridge", isolated)

    def _configure(self, device: int) -> None:
        settings = {**list_settings(), "ip_forward": "0"}
        del settings["fib_multipath_hash_policy"]
        run_lines(
            [*self.enter(device), "sh", "-s"],
            [
                *(
                    f"echo '{value}' > /proc/sys/net/ipv4/{name} || exit 1"
                    for name, value in settings.items()
                ),
                # Addresses of new interfaces can be used at once.
                "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad || true",
            ],
        )
        plan = self.cabling
        lines, buckets = ["link set lo up"], []
        is_switch = device >= len(plan.hosts)
        if is_switch:
            mtus = (port.mtu for port, _ in self._list_ports(device))
            lines += [
                f"link add name br0 mtu {min(mtus, default=_MANAGEMENT_MTU)} type bridge",
                "link set br0 up",
            ]
        else:
            lines += [
                f"addr add {plan.management_address(device)}/16 dev {MANAGEMENT_PORT}",
                f"link set {MANAGEMENT_PORT} up",
            ]
            buckets.append(describe_bucket(MANAGEMENT_PORT, _MANAGEMENT_bps))
        for port, rate in self._list_ports(device):
            if is_switch:
                lines.append(f"link set {port.name} master br0")
            elif port.address:
                lines.append(f"addr add {port.address} dev {port.name}")
            lines.append(f"link set {port.name} up")
            buckets.append(_describe_end(port.name, rate))
        self._batch(device, "ip", lines)
        self._batch(device, "tc", buckets)

    def _list_ports(self, device: int) -> Iterator[tuple[Port, int | None]]:
        """Yield the ports of a device with the rates out of them."""
        for cable in self.cabling.cables:
            if cable.a.device == device:
                yield cable.a, cable.rate_ab
            if cable.b.device == device:
                yield cable.b, cable.rate_ba

    def _find_cables(self, a: str, b: str) -> list[CablePlan]:
        """Return the cables between two devices, given by name; raise KeyError without one."""
        wanted = {self.cabling.devices.index(a), self.cabling.devices.index(b)}
        cables = [x for x in self.cabling.cables if {x.a.device, x.b.device} == wanted]
        if not cables:
            raise KeyError(f"{a}-{b}")
        return cables

    def mend(self, a: str, b: str) -> None:
        """Restore the cut cables between two devices; raise KeyError if there is none."""
        self._change_ends(a, b, "ip", lambda name: f"link set {name} up")

    def scale_rates(self, a: str, b: str, factor: Fraction) -> None:
        """Set the rates of the cables between two devices to `factor` times their original rates.

        Raise KeyError if there is none.
        """
        for x in self._find_cables(a, b):
            for port, rate in ((x.a, x.rate_ab), (x.b, x.rate_ba)):
                scaled = None if rate is None else max(8000, round(rate * factor))
                self._batch(port.device, "tc", [_describe_end(port.name, scaled)])

    def _change_ends(self, a: str, b: str, program: str, line: Callable[[str], str]) -> None:
        for cable in self._find_cables(a, b):
            for port in (cable.a, cable.b):
                self._batch(port.device, program, [line(port.name)])


def _describe_end(interface: str, rate_bps: int | None) -> str:
    if rate_bps is None:  # a bucket that no packet fits into
        return f"qdisc replace dev {interface} root tbf rate 8kbit burst 10 limit 10"
    return describe_bucket(interface, rate_bps)


@contextmanager
def emulate_cabling(plan: Cabling, *, opens_management: bool = False) -> Iterator[CabledNetwork]:
    """Emulate the hosts and cables of a plan for as long as the `with` block lasts.

    With `opens_management`, hosts also reach each other through the management network. Call it
    from the main thread, since namespaces end with their thread. Raise EmulationError.
    """
    if reason := why_not():
        raise EmulationError(reason)
    with tempfile.TemporaryDirectory(prefix="topoplan-") as folder:
        network = CabledNetwork(plan, Path(folder), opens_management=opens_management)
        try:
            network.build()
            yield network
        finally:
            network.close()
