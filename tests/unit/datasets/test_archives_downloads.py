"""Downloads from a real server on the loopback interface."""

import errno
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline.datasets import archives
from pipeline.datasets.archives import check_sha256, fetch
from pipeline.errors import InputError, explain_file_errors
from tests.fixtures.images import no_progress

_CONTENT = os.urandom(3_000_000)
_SHA256 = hashlib.sha256(_CONTENT).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    requests: list[str]
    """Requested paths; set per server."""

    def do_GET(self) -> None:
        self.requests.append(self.path)
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(_CONTENT)))
        self.end_headers()
        if self.path == "/short":
            self.wfile.write(_CONTENT[:1_000_000])
        elif self.path == "/stalled":
            self.wfile.write(_CONTENT[:2_000_000])
            self.wfile.flush()
            self.server.stalled.set()  # type: ignore[attr-defined]
            self.server.goes_on.wait(60)  # type: ignore[attr-defined]
        elif self.path == "/tampered":
            self.wfile.write(bytes([_CONTENT[0] ^ 1]) + _CONTENT[1:])
        else:
            self.wfile.write(_CONTENT)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


class Server:
    """Serves `_CONTENT`, whole or not, by path."""

    def __init__(self) -> None:
        handler = type("Handler", (_Handler,), {"requests": []})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.requests: list[str] = handler.requests  # type: ignore[attr-defined]
        self.stalled = self.http.stalled = threading.Event()  # type: ignore[attr-defined]
        self.goes_on = self.http.goes_on = threading.Event()  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.goes_on.set()
    server.http.shutdown()
    thread.join()
    server.http.server_close()


def test_whole_file_once(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "downloads" / "archive"
    for _ in range(2):
        fetch(f"{server.url}/archive", path, sha256=_SHA256, progress=no_progress)
        assert path.read_bytes() == _CONTENT
    assert server.requests == ["/archive"], "the second time it is there"


def test_a_damaged_copy_is_replaced(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_bytes(_CONTENT[:-1])
    fetch(f"{server.url}/archive", path, sha256=_SHA256, progress=no_progress)
    assert path.read_bytes() == _CONTENT


@pytest.mark.parametrize("what", ["short", "tampered"])
def test_wrong_content_is_refused(server: Server, tmp_path: Path, what: str) -> None:
    path = tmp_path / "archive"
    with pytest.raises(InputError) as refused:
        fetch(f"{server.url}/{what}", path, sha256=_SHA256, progress=no_progress)
    assert _SHA256 in str(refused.value)
    assert str(path) in str(refused.value)
    assert refused.value.key == f"{server.url}/{what}"
    assert list(tmp_path.iterdir()) == []


def test_missing_on_the_server(server: Server, tmp_path: Path) -> None:
    # Held by a name, the error would keep the server's answer open.
    with pytest.raises(InputError, match=rf"^{server.url}/missing: .*404"):
        fetch(f"{server.url}/missing", tmp_path / "archive", sha256=_SHA256, progress=no_progress)


def test_no_network_says_which_file_to_put_where(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/archive"
        with pytest.raises(InputError) as raised:
            fetch(url, tmp_path / "archive", sha256=_SHA256, progress=no_progress)
    assert raised.value.key == url
    assert str(tmp_path / "archive") in str(raised.value)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_an_error_of_the_disk_is_none_of_the_network(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(url: str, path: Path, progress: object) -> str:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(archives, "_download", refuse)
    with pytest.raises(InputError) as raised, explain_file_errors():
        fetch("http://127.0.0.1/archive", tmp_path / "archive", sha256=_SHA256, progress=no_progress)
    assert raised.value.key == str(tmp_path / "archive")
    assert "http" not in str(raised.value)


def test_a_killed_download_leaves_nothing_that_counts(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    code = (
        "import sys; from pathlib import Path; from contextlib import nullcontext; from unittest.mock import Mock;"
        "from pipeline.datasets.archives import fetch;"
        "fetch(sys.argv[1], Path(sys.argv[2]), sha256='', progress=lambda *_: nullcontext(Mock()))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, f"{server.url}/stalled", str(path)])
    try:
        assert server.stalled.wait(30)
        deadline = time.monotonic() + 30
        while not any(file.stat().st_size for file in tmp_path.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    server.goes_on.set()
    assert not path.exists()
    assert len(list(tmp_path.iterdir())) == 1, "the part that had come"
    fetch(f"{server.url}/archive", path, sha256=_SHA256, progress=no_progress)
    assert path.read_bytes() == _CONTENT
    assert list(tmp_path.iterdir()) == [path]


def test_progress_counts_the_bytes(server: Server, tmp_path: Path) -> None:
    counted: list[int] = []

    class Display:
        def __init__(self, description: str, total: int, unit: str) -> None:
            assert (total, unit) == (len(_CONTENT), "B")

        def __enter__(self) -> "Display":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, n: int = 1) -> None:
            counted.append(n)

    fetch(f"{server.url}/archive", tmp_path / "archive", sha256=_SHA256, progress=Display)
    assert sum(counted) == len(_CONTENT)


def test_local_copies(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_bytes(_CONTENT)
    check_sha256(path, _SHA256, "http://x")
    path.write_bytes(_CONTENT[:-1])
    for wrong in (path, tmp_path):
        with pytest.raises(InputError) as refused:
            check_sha256(wrong, _SHA256, "http://x")
        assert str(wrong) in str(refused.value)
        assert refused.value.key == "prepare.path"
