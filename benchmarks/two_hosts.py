"""Emulate two hosts on this machine: two network namespaces and a virtual cable that can be slowed, delayed and cut.

Requires Linux, root, and `ip` and `tc` of iproute2. Both hosts run on the same cores and see the same files.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.packet_relay import NAMESPACES

_CABLE, _NAME_PREFIX = "cable", "batchsieve-"
# Burst that may exceed the rate, and the longest wait of a packet: about the buffer of a switch.
_BURST_BYTES = 131_072
_QUEUE_MS = 100
_RELAYED_MTU = 65_000


class NoNamespaces(Exception):  # noqa: N818 - names what is missing
    """This machine cannot make network namespaces; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host on which a command can be started.

    Attributes:
        address: IP address at which the other host reaches it.
        interface: network interface with this address.
        prefix: words to put before a command, which start it on the host.
    """

    address: str
    interface: str
    prefix: tuple[str, ...]

    @property
    def environ(self) -> Mapping[str, str]:
        """Environment variables for gloo, which would otherwise look up an interface by this machine's name."""
        return {"GLOO_SOCKET_IFNAME": self.interface}


LOOPBACK = Host(address="127.0.0.1", interface="lo", prefix=())
"""This machine, without a namespace."""


@contextmanager
def two_hosts(delay_seconds: float | None = None) -> Iterator[tuple[Host, Host]]:
    """Make the two hosts at the ends of a cable; remove both namespaces and the cable afterwards.

    Args:
        delay_seconds: delay of a packet in each direction. With a number, also 0, the packets pass through a process
            (`packet_relay`). With None they stay in the kernel.

    Raises:
        NoNamespaces: this process has no permission to make namespaces, or there is no `ip`.
    """
    _require_command("ip")
    _remove_abandoned()
    names = [f"{_NAME_PREFIX}{os.getpid()}-{end}" for end in "ab"]
    with ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=False, capture_output=True)
        if delay_seconds is None:
            # Made inside the namespaces, it does not show among the interfaces of this machine.
            _ip("link", "add", _CABLE, "netns", names[0], "type", "veth", "peer", "name", _CABLE, "netns", names[1])
        else:
            stack.enter_context(_relaying(names, delay_seconds))
        # 192.0.2.0/24 is reserved for documentation (RFC 5737), so that no network uses it.
        hosts = [
            Host(address=address, interface=_CABLE, prefix=("ip", "netns", "exec", name))
            for name, address in zip(names, ("192.0.2.1", "192.0.2.2"), strict=True)
        ]
        for name, host in zip(names, hosts, strict=True):
            _ip("-n", name, "address", "add", f"{host.address}/24", "dev", _CABLE)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", _CABLE, "up")
            # As on clusters: no TCP slow start after the pause between steps. Fails silently if /proc/sys is
            # read-only.
            idle = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"
            subprocess.run([*host.prefix, "sh", "-c", f"echo 0 > {idle}"], check=False, capture_output=True)
        yield hosts[0], hosts[1]


def _remove_abandoned() -> None:
    """Remove the namespaces of processes that were killed."""
    for namespace in NAMESPACES.glob(f"{_NAME_PREFIX}*-[ab]"):
        pid = namespace.name.removeprefix(_NAME_PREFIX).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            subprocess.run(["ip", "netns", "delete", namespace.name], check=False, capture_output=True)


@contextmanager
def _relaying(names: Sequence[str], delay_seconds: float) -> Iterator[None]:
    """Make a cable whose packets a process relays."""
    options = ["-m", "benchmarks.packet_relay", *names, f"--device={_CABLE}", f"--delay={delay_seconds}"]
    with subprocess.Popen(
        [sys.executable, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as relay:
        try:
            assert relay.stdout is not None
            assert relay.stderr is not None
            if relay.stdout.readline() != "ready\n":
                lines = relay.stderr.read().splitlines() or [""]
                raise NoNamespaces(f"a namespace cannot have a TUN device: {lines[-1]}")
            for name in names:
                _ip("-n", name, "link", "set", _CABLE, "mtu", str(_RELAYED_MTU))
            yield
        finally:
            relay.kill()


def cut(host: Host) -> None:
    """Cut the cable without notice: packets are lost from now on."""
    _run(*host.prefix, "ip", "link", "set", _CABLE, "down")


def reconnect(host: Host) -> None:
    """Connect the cable again."""
    _run(*host.prefix, "ip", "link", "set", _CABLE, "up")


def slow(host: Host, bytes_per_second: float) -> None:
    """Limit the rate at which `host` sends, by a token bucket.

    Raises:
        NoNamespaces: there is no `tc`, or it has no token bucket.
    """
    _require_command("tc")
    bits = f"{8 * bytes_per_second:.0f}bit"
    shape = ["tbf", "rate", bits, "burst", str(_BURST_BYTES), "latency", f"{_QUEUE_MS}ms"]
    _run(*host.prefix, "tc", "qdisc", "replace", "dev", _CABLE, "root", *shape)


def _require_command(command: str) -> None:
    if shutil.which(command) is None:
        raise NoNamespaces(f"`{command}` is missing (iproute2)")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise NoNamespaces(f"`{' '.join(command)}` failed: {result.stderr.strip()}")
