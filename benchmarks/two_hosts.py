"""Two hosts on this machine, each a network namespace, joined by a virtual cable that can be slowed and cut.

Linux alone, as root: `ip` and `tc` of iproute2. Both hosts run on the same cores and see the same files.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

_CABLE = "cable"
# How much passes at once before the rate holds, and how long a packet may wait: a switch's buffer, roughly.
_BURST_BYTES = 131_072
_QUEUE_MS = 100


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
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """A cable's two ends; both namespaces, and the cable with them, are gone afterwards.

    Raises:
        NoNamespaces: this process may not make any, or there is no `ip`.
    """
    if shutil.which("ip") is None:
        raise NoNamespaces("there is no `ip` (iproute2)")
    names = [f"batchsieve-{os.getpid()}-{end}" for end in "ab"]
    made: list[str] = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        # Made where it ends, it never shows among this machine's own interfaces.
        _ip("link", "add", _CABLE, "netns", names[0], "type", "veth", "peer", "name", _CABLE, "netns", names[1])
        # 192.0.2.0/24 is for documentation (RFC 5737): nobody's network.
        addresses = ("192.0.2.1", "192.0.2.2")
        for name, address in zip(names, addresses, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", _CABLE)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", _CABLE, "up")
        first, second = (
            Host(address=address, interface=_CABLE, prefix=("ip", "netns", "exec", name))
            for name, address in zip(names, addresses, strict=True)
        )
        yield first, second
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def cut(host: Host) -> None:
    """Pull the cable: nobody is told, packets are lost from now on."""
    _run(*host.prefix, "ip", "link", "set", _CABLE, "down")


def mend(host: Host) -> None:
    """Plug it in again."""
    _run(*host.prefix, "ip", "link", "set", _CABLE, "up")


def slow(host: Host, bytes_per_second: float) -> None:
    """Let no more than this out of `host`, by a token bucket; the other direction is the other host's."""
    bits = f"{8 * bytes_per_second:.0f}bit"
    shape = ["tbf", "rate", bits, "burst", str(_BURST_BYTES), "latency", f"{_QUEUE_MS}ms"]
    _run(*host.prefix, "tc", "qdisc", "replace", "dev", _CABLE, "root", *shape)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoNamespaces(f"`{' '.join(command)}` says: {done.stderr.strip()}")
