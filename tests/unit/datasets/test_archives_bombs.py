"""Archives that state small sizes and unpack to large ones take little memory."""

import gzip
import io
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.datasets.archives import open_archive
from pipeline.datasets.decode import UnreadableError
from pipeline.errors import InputError
from tests.fixtures.images import write_zip

_BOMB_BYTES = 50_000_000
_MOST_BYTES = 20_000_000
_STATED = 1_000


@contextmanager
def _little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < _MOST_BYTES
    finally:
        tracemalloc.stop()


def _state_a_small_size(path: Path) -> None:
    """Replace the sizes of a zip's first member, in its header and in the directory."""
    data = bytearray(path.read_bytes())
    for magic, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = data.index(magic) + offset
        data[at : at + 4] = _STATED.to_bytes(4, "little")
    path.write_bytes(data)


@pytest.mark.parametrize("method", ["ZIP_DEFLATED", "ZIP_BZIP2", "ZIP_LZMA"])
def test_a_member_of_a_zip_is_cut_where_it_says(method: str, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a", {"cat/1.png": bytes(_BOMB_BYTES), "cat/2.png": b"2"}, getattr(zipfile, method))
    _state_a_small_size(path)
    with _little_memory():
        content = dict(open_archive(path).read({"cat/1.png", "cat/2.png"}, 100_000))
    assert isinstance(content["cat/1.png"], UnreadableError)
    assert "damaged in the archive" in str(content["cat/1.png"])
    assert content["cat/2.png"] == b"2"


def test_a_packed_member_that_is_larger_than_an_image_is_not_read(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a", {"cat/1.png": bytes(_BOMB_BYTES)}, zipfile.ZIP_STORED)
    _state_a_small_size(path)
    with _little_memory():
        (content,) = dict(open_archive(path).read({"cat/1.png"}, 100_000)).values()
    assert str(content).startswith("50 MB, more than an image")


def _gnu_name(size: int) -> bytes:
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, size
    return member.tobuf(tarfile.GNU_FORMAT)


def _pax_attributes(size: int) -> bytes:
    member = tarfile.TarInfo("././@PaxHeader")
    member.type, member.size = tarfile.XHDTYPE, size
    return member.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("header", [_gnu_name, _pax_attributes])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_long_name_of_a_tar_is_not_read(header: Callable[[int], bytes], is_first: bool, tmp_path: Path) -> None:
    start = io.BytesIO()
    if not is_first:
        with tarfile.open(fileobj=start, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("cat/1.png"))
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(start.getvalue()[:512])
        file.write(header(_BOMB_BYTES))
        for _ in range(_BOMB_BYTES // 1_000_000):
            file.write(bytes(1_000_000))
    with _little_memory(), pytest.raises(InputError) as refused:
        open_archive(path).tree()
    assert refused.value.key == "prepare.path"
