"""A cable between two network namespaces that takes its time: every packet comes out so long after it went in.

Linux, as root: a TUN device in each namespace, and this process between them. `tc`'s netem does the same in the kernel,
where it was built in. Without segmentation by a network adapter there are as many packets as the devices' MTU makes;
with 65,000 bytes each they cost the cores a few per cent at 1 Gbit/s.

    python -m benchmarks.packet_relay NAMESPACE NAMESPACE --device NAME --delay SECONDS

Prints `ready` when both devices are there, and runs until it is killed.
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
    """File descriptor of a new TUN device, which is gone when it is closed; this thread stays in the namespace.

    Raises:
        OSError: there is no such namespace, or no right to make a device in it.
    """
    with (NAMESPACES / namespace).open() as entered:
        if ctypes.CDLL(None, use_errno=True).setns(entered.fileno(), 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH14x", name.encode(), _TUN_WITHOUT_HEADER))
    return device


def relay(source: int, target: int, delay_seconds: float) -> None:
    """Start to pass on what `source` sends, in its order; in two threads that end with the process."""
    underway: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def take_in() -> None:
        while True:
            packet = os.read(source, _LARGEST_PACKET)
            underway.put((time.monotonic() + delay_seconds, packet))

    def let_out() -> None:
        while True:
            due, packet = underway.get()
            time.sleep(max(0.0, due - time.monotonic()))
            # Of a device that is down the packet is lost, as it would be.
            with suppress(OSError):
                os.write(target, packet)

    for work in (take_in, let_out):
        threading.Thread(target=work, daemon=True).start()


def run() -> None:
    """Make both devices and relay in both directions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("namespaces", nargs=2, metavar="NAMESPACE")
    parser.add_argument("--device", required=True, help="name of the device in each")
    parser.add_argument("--delay", type=float, required=True, help="seconds, in each direction")
    arguments = parser.parse_args()
    first, second = (open_device(namespace, arguments.device) for namespace in arguments.namespaces)
    relay(first, second, arguments.delay)
    relay(second, first, arguments.delay)
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    run()
