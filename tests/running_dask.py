"""A Dask scheduler and its workers, as people start them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from made_up import ROOT


@contextmanager
def running_scheduler(*, workers: int, threads: int = 1, folder: Path = ROOT) -> Iterator[str]:
    """The address of a scheduler on the loopback interface, with workers in processes of their own.

    Args:
        folder: in which they are started.
    """
    address = f"tcp://127.0.0.1:{free_port()}"
    host, port = address.removeprefix("tcp://").split(":")
    scheduler = ["scheduler", "--host", host, "--port", port, "--no-dashboard"]
    worker = ["worker", address, "--host", host, "--nthreads", str(threads), "--no-dashboard", "--no-nanny"]
    commands = [scheduler, *[worker] * workers]
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}  # tests have tasks too
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "dask", *command],
            cwd=folder,
            env={**os.environ, **paths},
            stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]
    try:
        _wait_for(host, int(port), processes[0])
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _wait_for(host: str, port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


def free_port() -> int:
    """Of the loopback interface."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
