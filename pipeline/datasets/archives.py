"""Tar and zip archives as sources of files, read in place: nothing is ever unpacked to disk."""

import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Set
from pathlib import Path

from pipeline.datasets.images import UnreadableError
from pipeline.datasets.members import Members, named_damage, normal
from pipeline.datasets.tree import FileTree, too_large
from pipeline.errors import InputError

_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_DAMAGED_DATA = (zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error, EOFError, OSError)
# zipfile raises NotImplementedError for versions of the format that do not exist.
_DAMAGE = (*_DAMAGED_DATA, tarfile.TarError, ValueError, NotImplementedError)
_ENCRYPTED = 1
_CHUNK_BYTES = 1 << 20


def open_archive(path: Path) -> "TarSource | ZipSource":
    """By content, not by name: .zip, or .tar plain or compressed. Raises InputError if it cannot be opened."""
    with named_damage(str(path), (OSError,)), path.open("rb") as file:
        return ZipSource(path) if file.read(4) in _ZIP_MAGIC else TarSource(path)


class TarSource:
    """`FileSource` of a tar archive; both passes go through it once, front to back."""

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._path = path

    def tree(self) -> FileTree:
        members = Members(self.label)
        with named_damage(self.label, _DAMAGE), tarfile.open(self._path) as archive:
            for member in archive:
                members.add(member.name, _tar_kind(member))
            _check_end(archive)
        return members.tree()

    def read(self, names: Set[str], max_bytes: int) -> Iterator[tuple[str, bytes | UnreadableError]]:
        with named_damage(self.label, _DAMAGE), tarfile.open(self._path) as archive:
            for member in archive:
                name = normal(member.name)
                if name in names:
                    yield name, too_large(member.size, max_bytes) or _tar_content(archive, member)


class ZipSource:
    """`FileSource` of a zip archive."""

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._path = path

    def tree(self) -> FileTree:
        members = Members(self.label)
        with named_damage(self.label, _DAMAGE), zipfile.ZipFile(self._path) as archive:
            for info in archive.infolist():
                if info.flag_bits & _ENCRYPTED:
                    raise InputError(f"prepare.path: {self.label}: is encrypted; pack it without a password")
                members.add(info.filename, _zip_kind(info))
        return members.tree()

    def read(self, names: Set[str], max_bytes: int) -> Iterator[tuple[str, bytes | UnreadableError]]:
        with named_damage(self.label, _DAMAGE), zipfile.ZipFile(self._path) as archive:
            for info in archive.infolist():
                name = normal(info.filename)
                if name in names:
                    yield name, too_large(info.file_size, max_bytes) or _zip_content(archive, info)


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
    """A tar ends with zeros. `tarfile` takes any broken header for the end, which would lose the rest."""
    stream = archive.fileobj
    assert stream is not None
    stream.seek(archive.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"cut off or broken after {archive.offset} bytes")
    while stream.read(_CHUNK_BYTES):
        pass  # to the end, where compressed formats keep their checksum


def _zip_kind(info: zipfile.ZipInfo) -> str:
    if info.filename.endswith("/"):
        return "folder"
    # Unix packers keep the file's mode here, others nothing.
    mode = stat.S_IFMT(info.external_attr >> 16)
    if mode in (0, stat.S_IFREG):
        return "file"
    return "link" if mode == stat.S_IFLNK else "device or pipe"


def _zip_content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes | UnreadableError:
    try:
        return archive.read(info)
    except NotImplementedError:
        return UnreadableError("packed by a method that Python does not know; pack the archive again with deflate")
    except _DAMAGED_DATA as error:
        # The other members stand on their own.
        return UnreadableError(f"damaged in the archive ({error})")
