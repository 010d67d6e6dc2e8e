"""A Dask scheduler and its workers, as people start them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from made_up import ROOT


class Pool:
    """A scheduler on the loopback interface and its workers, each in a process of its own.

    Attributes:
        address: of the scheduler.
    """

    def __init__(self, folder: Path) -> None:
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self._folder, self._processes = folder, ExitStack()
        host, port = self.address.removeprefix("tcp://").split(":")
        self._scheduler = self._start("scheduler", "--host", host, "--port", port)

    def join(self, *, threads: int = 1, environ: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        """Start one more worker.

        Args:
            environ: added to its environment; a PYTHONPATH comes before the project.
        """
        options = ["--host", "127.0.0.1", "--nthreads", str(threads), "--no-nanny"]
        return self._start("worker", self.address, *options, environ=environ)

    def _start(self, *command: str, environ: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        given = dict(environ or {})
        # Tests have tasks too.
        paths = [*given.pop("PYTHONPATH", "").split(os.pathsep), str(ROOT), str(ROOT / "tests")]
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *command, "--no-dashboard"],
            cwd=self._folder,
            env={**os.environ, **given, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stderr=subprocess.DEVNULL,
        )
        self._processes.callback(process.wait)
        self._processes.callback(process.kill)
        return process

    def wait(self) -> None:
        """Until the scheduler answers."""
        host, port = self.address.removeprefix("tcp://").split(":")
        _wait_for(host, int(port), self._scheduler)

    def end(self) -> None:
        self._processes.close()


@contextmanager
def running_pool(folder: Path = ROOT) -> Iterator[Pool]:
    """A scheduler that workers join and leave; nobody has joined yet.

    Args:
        folder: in which all are started.
    """
    pool = Pool(folder)
    try:
        yield pool
    finally:
        pool.end()


@contextmanager
def running_scheduler(*, workers: int, threads: int = 1, folder: Path = ROOT) -> Iterator[str]:
    """The address of a scheduler with so many workers.

    Args:
        folder: in which they are started.
    """
    with running_pool(folder) as pool:
        for _ in range(workers):
            pool.join(threads=threads)
        pool.wait()
        yield pool.address


def _wait_for(host: str, port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
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
