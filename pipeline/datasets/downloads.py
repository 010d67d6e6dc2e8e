"""Files from the network, accepted only with the right content."""

import errno
import hashlib
import http.client
import urllib.request
from pathlib import Path

from pipeline.artifacts.atomic import atomic_path, remove_leftovers
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.datasets.image_set import ProgressDisplay
from pipeline.errors import InputError

_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 60.0
"""Longest silence of the server."""


def fetch(url: str, path: Path, *, sha256: str, progress: ProgressDisplay) -> None:
    """Download `url` to `path` unless the right file is there already.

    The file appears only when it is whole and its hash is right, so an interrupted download
    leaves nothing behind that could be taken for one.

    Raises:
        InputError: no network, or other content than expected; says where to put a copy.
    """
    if path.is_file() and sha256_of_file(path) == sha256:
        return
    mend = f"get it by other means and give its location as prepare.path, or put it at {path}"
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    with atomic_path(path) as temporary:
        try:
            found = _download(url, temporary, progress)
        except (OSError, http.client.HTTPException) as error:
            if _is_local(error):
                raise
            raise InputError(f"{url}: cannot be downloaded ({error}); {mend}") from None
        if found != sha256:
            raise InputError(f"{url}: the download has the SHA-256 {found}, expected {sha256}; {mend}")


def check_sha256(path: Path, sha256: str, url: str) -> None:
    """Raises InputError unless `path` is a file with this content."""
    if not path.is_file():
        raise InputError(f"prepare.path: {path} is not a file; give a copy of {url}, or remove the key to download it")
    found = sha256_of_file(path)
    if found != sha256:
        raise InputError(
            f"prepare.path: {path} has the SHA-256 {found}, expected {sha256}; it is no whole copy of {url}"
        )


def _download(url: str, path: Path, progress: ProgressDisplay) -> str:
    """Returns the SHA-256 of what came."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response, path.open("wb") as file:
        total = int(response.headers.get("Content-Length") or 0)
        with progress(f"download {url}", total, "B") as counter:
            while chunk := response.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
                counter.update(len(chunk))
    return digest.hexdigest()


def _is_local(error: Exception) -> bool:
    """Whether the disk is at fault and not the network."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
