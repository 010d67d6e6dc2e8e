"""Emulate a cable with latency between two network namespaces: delay every packet by a constant time.

Requires Linux and root. Makes a TUN device in each namespace and relays between them. `tc`'s netem does the same in
kernels that include it. No network adapter segments the data: the devices' MTU determines the number of packets. With
65,000 bytes each they cost the cores a few percent at 1 Gbit/s.

    python -m benchmarks.packet_relay NAMESPACE NAMESPACE --device NAME --delay SECONDS

Prints `ready` when both devices exist, and runs until it is killed.
"""

import argparse
import ctypes
import fcntl
import os
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

NAMESPACES = Path("/run/netns")
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000  # IFF_TUN | IFF_NO_PI
_LARGEST_PACKET = 65_536


def open_device(namespace: str, name: str) -> int:
    """Return the file descriptor of a new TUN device; closing it removes the device.

    The calling thread stays in the namespace.

    Raises:
        OSError: there is no such namespace, or no permission to make a device in it.
    """
    with (NAMESPACES / namespace).open() as entered:
        if ctypes.CDLL(None, use_errno=True).setns(entered.fileno(), 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH14x", name.encode(), _TUN_WITHOUT_HEADER))
    return device


def relay(source: int, target: int, delay_seconds: float) -> None:
    """Start two daemon threads that forward packets from `source` to `target`, in order, after the delay."""
    queue: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def receive() -> None:
        while True:
            packet = os.read(source, _LARGEST_PACKET)
            queue.put((time.monotonic() + delay_seconds, packet))

    def send() -> None:
        while True:
            due, packet = queue.get()
            time.sleep(max(0.0, due - time.monotonic()))
            # If the device is down the packet is lost, as on a real cable.
            with suppress(OSError):
                os.write(target, packet)

    for work in (receive, send):
        threading.Thread(target=work, daemon=True).start()


def run() -> None:
    """Make both devices and relay packets in both directions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("namespaces", nargs=2, metavar="NAMESPACE")
    parser.add_argument("--device", required=True, help="name of the device in each namespace")
    parser.add_argument("--delay", type=float, required=True, help="seconds, in each direction")
    arguments = parser.parse_args()
    first, second = (open_device(namespace, arguments.device) for namespace in arguments.namespaces)
    relay(first, second, arguments.delay)
    relay(second, first, arguments.delay)
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    run()
