"""The app as a process of its own."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serve_app(project: Path) -> Iterator[str]:
    """`python -m viz` on a folder with params.yaml and data/; its address. No request may fail in it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    files = ["--params", str(project / "params.yaml"), "--data", str(project / "data")]
    command = [sys.executable, "-m", "viz", "--port", str(port), *files]
    log = project / "viz.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}/"
            _wait_for(url, process, log)
            yield url
        finally:
            process.terminate()
            process.wait(30)
    assert "Traceback" not in log.read_text()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return
