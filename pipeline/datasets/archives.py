"""Downloads with checksums, folders and tar archives read without unpacking, and pickles read without running code.

Pickles are of plain data of bounded size.
"""

import errno
import hashlib
import http.client
import io
import lzma
import math
import pickle
import pickletools
import re
import struct
import tarfile
import urllib.request
import zlib
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.files import atomic_path, remove_leftovers
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.datasets.decode import UnreadableError
from pipeline.datasets.file_tree import (
    ArchiveMembers,
    FileSource,
    FileTree,
    FolderSource,
    explain_damage,
    is_plain,
    normalize_name,
    too_large,
)
from pipeline.datasets.image_set import ProgressFactory
from pipeline.datasets.zip_archives import ZipSource
from pipeline.errors import InputError

_TIMEOUT_S = 60.0
"""Timeout of a network read."""
_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, struct.error, EOFError, OSError, ValueError)
# Members with the name or the attributes of the next one, which tarfile reads at once.
_HEADERS = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
)  # fmt: skip
_MAX_HEADER_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
_OF_THE_DISK = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
)  # fmt: skip

_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict, np.ndarray)
_NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")
_MEMO_WRITERS = {"PUT", "BINPUT", "LONG_BINPUT"}
# They reserve memory for buffers outside of the pickle, or of any stated size.
_BUFFERS = {"BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER"}


def fetch(url: str, path: Path, *, sha256: str, progress: ProgressFactory) -> None:
    """Download `url` to `path` unless the file is there with the right hash.

    The file appears only when it is complete and its hash is right.

    Raises:
        InputError: no network, or a wrong hash; the message says where to put a copy.
    """
    if path.is_file() and sha256_of_file(path) == sha256:
        return
    fix = f"download it in another way and set prepare.path to it, or put it at {path}"
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    with atomic_path(path) as temporary:
        try:
            digest = _download(url, temporary, progress)
        except (OSError, http.client.HTTPException) as error:
            if _is_local(error):
                raise
            raise InputError(f"{url}: cannot be downloaded ({error}); {fix}") from None
        if digest != sha256:
            raise InputError(f"{url}: the download has the SHA-256 {digest}, expected {sha256}; {fix}")


def check_sha256(path: Path, sha256: str, url: str) -> None:
    """Check that `path` is a file with this SHA-256.

    Args:
        url: source of the file, for messages.

    Raises:
        InputError: there is no such file, or its content differs.
    """
    if not path.is_file():
        raise InputError(f"prepare.path: {path} is not a file; give a copy of {url}, or remove the key to download it")
    digest = sha256_of_file(path)
    if digest != sha256:
        raise InputError(
            f"prepare.path: {path} has the SHA-256 {digest}, expected {sha256}; give a complete copy of {url}"
        )


def _download(url: str, path: Path, progress: ProgressFactory) -> str:
    """Download `url` to `path`; returns the SHA-256 of the content."""
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
    """Return whether the disk caused the error, not the network: urllib's errors have no number."""
    return isinstance(error, OSError) and error.errno in _OF_THE_DISK


def open_source(path: Path) -> FileSource:
    """Open a folder or an archive.

    Raises:
        InputError: there is neither, its name is no text, or the archive cannot be opened.
    """
    if not is_plain(str(path)):
        raise InputError(f"prepare.path: {str(path)!a} holds a line break or is not UTF-8; rename it")
    if not path.exists():
        raise InputError(f"prepare.path: {path} does not exist; give a folder of images or an archive of one")
    if path.is_dir():
        return FolderSource(path)
    if not path.is_file():
        raise InputError(f"prepare.path: {path} is neither a folder nor a file; give a folder or an archive of one")
    return open_archive(path)


def open_archive(path: Path) -> "TarSource | ZipSource":
    """Open a .zip or a plain or compressed .tar, recognized by its content.

    Raises:
        InputError: the file cannot be opened.
    """
    with explain_damage(str(path), (OSError,)), path.open("rb") as file:
        return ZipSource(path) if file.read(4) in _ZIP_MAGIC else TarSource(path)


class TarSource:
    """`FileSource` of a tar archive. `tree` and `read` each pass through it once, front to back."""

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._path = path

    def tree(self) -> FileTree:
        members = ArchiveMembers(self.label)
        with explain_damage(self.label, _DAMAGE), tarfile.open(self._path, tarinfo=_BoundedHeader) as archive:
            for member in _members(archive):
                members.add(member.name, _tar_kind(member))
            _check_end(archive)
        return members.tree()

    def read(self, names: Set[str], max_bytes: int) -> Iterator[tuple[str, bytes | UnreadableError]]:
        with explain_damage(self.label, _DAMAGE), tarfile.open(self._path, tarinfo=_BoundedHeader) as archive:
            for member in _members(archive):
                name = normalize_name(member.name)
                if name in names:
                    yield name, too_large(member.size, max_bytes) or _tar_content(archive, member)


class _BoundedHeader(tarfile.TarInfo):
    """Refuses a name or attributes that would fill the memory, before they are read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _HEADERS and member.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a name or attributes of {member.size} bytes")
        return member


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar, each behind the one before it.

    Raises:
        ReadError: a negative size leads back, which Python before 3.11.14 follows in a circle (CVE-2025-8194).
    """
    end = -1
    for member in archive:
        if member.size < 0 or archive.offset <= end:
            raise tarfile.ReadError(f"a member of negative size at {member.offset} bytes")
        end = archive.offset
        yield member


def _tar_kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "link"
    if member.isdir():
        return "folder"
    return "file" if member.isreg() else "device or pipe"


def _tar_content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def _check_end(archive: tarfile.TarFile) -> None:
    """Check that a tar ends with zeros: `tarfile` takes any broken header for the end, which would lose the rest.

    Raises:
        ReadError: the archive is cut off or broken.
    """
    stream = archive.fileobj
    assert stream is not None
    stream.seek(archive.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"cut off or broken after {archive.offset} bytes")
    while stream.read(_CHUNK_BYTES):
        pass  # read to the end, where compressed formats have their checksum


def load_plain_pickle(data: bytes, *, source: str) -> Any:
    """Unpickle plain data: numbers, text, bytes, lists, dictionaries and NumPy arrays.

    Nothing that the pickle names is imported or called; NumPy arrays of numbers are built from checked parts. Strings
    of Python 2 become bytes. Memory: O(len(data)).

    Args:
        source: name of the data in messages.

    Raises:
        InputError: the data is not a pickle, or holds other objects.
    """
    try:
        _check_memory(data)
        loaded = _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
        # A truncated pickle may leave a part of an array.
        if not isinstance(loaded, _PLAIN):
            raise pickle.UnpicklingError(f"it holds a {type(loaded).__name__}")
        return loaded
    except Exception as error:  # noqa: BLE001 - foreign bytes can make the unpickler raise anything
        raise InputError(f"{source}: not a pickle of plain arrays ({error}); get the original archive") from None


def _check_memory(data: bytes) -> None:
    """Refuse what makes the unpickler reserve more memory than the pickle has bytes.

    It fills a table up to the largest index of an object, whatever the number of objects.
    """
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _BUFFERS:
            raise pickle.UnpicklingError(f"it has a buffer, {opcode.name}")
        if opcode.name in _MEMO_WRITERS and int(argument or 0) not in range(len(data)):
            raise pickle.UnpicklingError(f"it numbers an object {argument}")


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # NumPy 1 wrote numpy.core, NumPy 2 writes numpy._core.
        match module.replace("numpy._core", "numpy.core"), name:
            case "numpy", "ndarray":
                return _ArrayClass
            case "numpy", "dtype":
                return _DType
            case "numpy.core.multiarray", "_reconstruct":
                return _empty_array
        raise pickle.UnpicklingError(f"it names {module}.{name}")


class _ArrayClass:
    """Stands for `numpy.ndarray`, which would allocate an array of any size when called."""


class _DType:
    """Stands for `numpy.dtype`, whose own `__setstate__` trusts its argument."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        self._name = name.decode("ascii") if isinstance(name, bytes) else name
        self._byte_order = "="
        if not isinstance(self._name, str) or not _NUMBERS.fullmatch(self._name):
            raise pickle.UnpicklingError("it has an array of other values than numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError("it has numbers of an unknown byte order")
        self._byte_order = order

    def to_numpy(self) -> np.dtype[Any]:
        return np.dtype(self._byte_order + self._name)


class _PlainArray(np.ndarray[Any, Any]):
    """An array that checks what it is filled with: NumPy's own `__setstate__` can read beyond the end of a list."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, raw = state
        if not isinstance(dtype, _DType) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("it has an array of other values than numbers")
        if not isinstance(shape, tuple) or not all(type(size) is int and 0 <= size < 2**31 for size in shape):
            raise pickle.UnpicklingError("it has an array of an impossible shape")
        if math.prod(shape) * dtype.to_numpy().itemsize != len(raw):
            raise pickle.UnpicklingError(f"it has {len(raw)} bytes for an array of shape {shape}")
        checked: Any = (1, shape, dtype.to_numpy(), bool(is_fortran), raw)
        super().__setstate__(checked)


def _empty_array(kind: type, shape: tuple[int, ...], _: bytes) -> NDArray[Any]:
    """Return the array that NumPy's `_reconstruct` returns for its pickles; their next step fills it."""
    if kind is not _ArrayClass or shape != (0,):
        raise pickle.UnpicklingError("it starts an array with a size")
    return np.zeros(0, dtype=np.int8).view(_PlainArray)
