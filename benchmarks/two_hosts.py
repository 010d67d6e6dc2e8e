"""Two hosts on this machine, each a network namespace, joined by a virtual cable that can be slowed, delayed and cut.

Linux alone, as root: `ip` and `tc` of iproute2. Both hosts run on the same cores and see the same files.
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

_CABLE, _OURS = "cable", "batchsieve-"
# How much passes at once before the rate holds, and how long a packet may wait: a switch's buffer, roughly.
_BURST_BYTES = 131_072
_QUEUE_MS = 100
_RELAYED_MTU = 65_000


class NoNamespaces(Exception):  # noqa: N818 - says what is not there
    """No network namespace can be made here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where a command can be started.

    Attributes:
        address: by which the other host reaches it.
        interface: that has this address.
        prefix: words before a command that start it there.
    """

    address: str
    interface: str
    prefix: tuple[str, ...]

    @property
    def environ(self) -> Mapping[str, str]:
        """Gloo would otherwise look for an interface by this machine's name."""
        return {"GLOO_SOCKET_IFNAME": self.interface}


LOOPBACK = Host(address="127.0.0.1", interface="lo", prefix=())
"""This machine itself."""


@contextmanager
def two_hosts(delay_seconds: float | None = None) -> Iterator[tuple[Host, Host]]:
    """A cable's two ends; both namespaces, and the cable with them, are gone afterwards.

    Args:
        delay_seconds: that a packet is underway, in each direction. With a number, 0 too, the packets pass through a
            process (`packet_relay`); without one they stay in the kernel.

    Raises:
        NoNamespaces: this process may not make any, or there is no `ip`.
    """
    _check_there("ip")
    _remove_abandoned()
    names = [f"{_OURS}{os.getpid()}-{end}" for end in "ab"]
    with ExitStack() as ended:
        for name in names:
            _ip("netns", "add", name)
            ended.callback(subprocess.run, ["ip", "netns", "delete", name], check=False, capture_output=True)
        if delay_seconds is None:
            # Made where it ends, it never shows among this machine's own interfaces.
            _ip("link", "add", _CABLE, "netns", names[0], "type", "veth", "peer", "name", _CABLE, "netns", names[1])
        else:
            ended.enter_context(_relaying(names, delay_seconds))
        # 192.0.2.0/24 is for documentation (RFC 5737): nobody's network.
        hosts = [
            Host(address=address, interface=_CABLE, prefix=("ip", "netns", "exec", name))
            for name, address in zip(names, ("192.0.2.1", "192.0.2.2"), strict=True)
        ]
        for name, host in zip(names, hosts, strict=True):
            _ip("-n", name, "address", "add", f"{host.address}/24", "dev", _CABLE)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", _CABLE, "up")
            # As clusters are set: a step's messages need not feel their way anew after each pause. They do where
            # /proc/sys cannot be written.
            idle = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"
            subprocess.run([*host.prefix, "sh", "-c", f"echo 0 > {idle}"], check=False, capture_output=True)
        yield hosts[0], hosts[1]


def _remove_abandoned() -> None:
    """Namespaces of processes that were killed and could not remove them."""
    for namespace in NAMESPACES.glob(f"{_OURS}*-[ab]"):
        pid = namespace.name.removeprefix(_OURS).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            subprocess.run(["ip", "netns", "delete", namespace.name], check=False, capture_output=True)


@contextmanager
def _relaying(names: Sequence[str], delay_seconds: float) -> Iterator[None]:
    """A cable whose packets a process passes on."""
    words = ["-m", "benchmarks.packet_relay", *names, f"--device={_CABLE}", f"--delay={delay_seconds}"]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as relay:
        try:
            assert relay.stdout is not None
            assert relay.stderr is not None
            if relay.stdout.readline() != "ready\n":
                said = relay.stderr.read().splitlines() or [""]
                raise NoNamespaces(f"no TUN device can be made in one: {said[-1]}")
            for name in names:
                _ip("-n", name, "link", "set", _CABLE, "mtu", str(_RELAYED_MTU))
            yield
        finally:
            relay.kill()


def cut(host: Host) -> None:
    """Pull the cable: nobody is told, packets are lost from now on."""
    _run(*host.prefix, "ip", "link", "set", _CABLE, "down")


def mend(host: Host) -> None:
    """Plug it in again."""
    _run(*host.prefix, "ip", "link", "set", _CABLE, "up")


def slow(host: Host, bytes_per_second: float) -> None:
    """Let no more than this out of `host`, by a token bucket; the other direction is the other host's.

    Raises:
        NoNamespaces: there is no `tc`, or none that can do it.
    """
    _check_there("tc")
    bits = f"{8 * bytes_per_second:.0f}bit"
    shape = ["tbf", "rate", bits, "burst", str(_BURST_BYTES), "latency", f"{_QUEUE_MS}ms"]
    _run(*host.prefix, "tc", "qdisc", "replace", "dev", _CABLE, "root", *shape)


def _check_there(command: str) -> None:
    if shutil.which(command) is None:
        raise NoNamespaces(f"there is no `{command}` (iproute2)")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoNamespaces(f"`{' '.join(command)}` says: {done.stderr.strip()}")
