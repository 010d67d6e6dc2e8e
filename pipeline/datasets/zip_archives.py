"""Zip archives read without unpacking; each member takes the memory that it states, whatever it unpacks to."""

import bz2
import lzma
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Set
from pathlib import Path

from pipeline.datasets.decode import UnreadableError
from pipeline.datasets.file_tree import ArchiveMembers, FileTree, explain_damage, normalize_name, too_large
from pipeline.errors import InputError

_DAMAGED_DATA = (zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error, EOFError, OSError)
# zipfile raises NotImplementedError for versions of the format that do not exist.
_DAMAGE = (*_DAMAGED_DATA, ValueError, NotImplementedError)
_ENCRYPTED = 1
_UTF8_NAME = 0x800
_LOCAL_HEADER = 30
_LZMA_MEMORY = 1 << 28


class ZipSource:
    """`FileSource` of a zip archive."""

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._path = path

    def tree(self) -> FileTree:
        members = ArchiveMembers(self.label)
        with explain_damage(self.label, _DAMAGE), zipfile.ZipFile(self._path) as archive:
            for info in archive.infolist():
                if info.flag_bits & _ENCRYPTED:
                    raise InputError(f"prepare.path: {self.label}: is encrypted; pack it without a password")
                members.add(_member_name(info), _kind(info))
        return members.tree()

    def read(self, names: Set[str], max_bytes: int) -> Iterator[tuple[str, bytes | UnreadableError]]:
        with explain_damage(self.label, _DAMAGE), zipfile.ZipFile(self._path) as archive:
            for info in archive.infolist():
                name = normalize_name(_member_name(info))
                if name in names:
                    size = max(info.file_size, info.compress_size)
                    yield name, too_large(size, max_bytes) or _content(archive, info)


def _member_name(info: zipfile.ZipInfo) -> str:
    """Return the name as text."""
    if info.flag_bits & _UTF8_NAME:
        return info.filename
    # The command `zip` writes UTF-8 without the flag, and zipfile reads it as code page 437.
    try:
        return info.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return info.filename


def _kind(info: zipfile.ZipInfo) -> str:
    if info.filename.endswith("/"):
        return "folder"
    # Unix packers store the file's mode here, others nothing.
    mode = stat.S_IFMT(info.external_attr >> 16)
    if mode in (0, stat.S_IFREG):
        return "file"
    return "link" if mode == stat.S_IFLNK else "device or pipe"


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes | UnreadableError:
    try:
        if info.compress_type in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
            return _unpacked(archive, info)
        with archive.open(info) as file:
            # Without a size, zipfile unpacks up to a gigabyte before it cuts.
            return file.read(info.file_size)
    except NotImplementedError:
        return UnreadableError("packed by a method that Python does not know; pack the archive again with deflate")
    except _DAMAGED_DATA as error:
        # The other members can still be read.
        return UnreadableError(f"damaged in the archive ({error})")


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return the content of a member packed by bzip2 or LZMA, of which zipfile unpacks all before it cuts."""
    file = archive.fp
    assert file is not None
    file.seek(info.header_offset)
    name, extra = struct.unpack_from("<HH", file.read(_LOCAL_HEADER), _LOCAL_HEADER - 4)
    file.seek(name + extra, 1)
    packed = file.read(info.compress_size)
    decompressor: bz2.BZ2Decompressor | lzma.LZMADecompressor = bz2.BZ2Decompressor()
    if info.compress_type == zipfile.ZIP_LZMA:
        # After a version and the length of the properties; as a .lzma file of unknown size.
        end = 4 + struct.unpack_from("<2xH", packed)[0]
        packed = packed[4:end] + b"\xff" * 8 + packed[end:]
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=_LZMA_MEMORY)
    content = decompressor.decompress(packed, info.file_size + 1)
    if zlib.crc32(content) != info.CRC:
        raise zipfile.BadZipFile(f"bad CRC-32 of {info.filename!r}")
    return content
