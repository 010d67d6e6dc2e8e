"""Archives as sources: what is read, what is refused, and that damage is never silent."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.datasets.archives import open_archive
from pipeline.datasets.decode import UnreadableError
from pipeline.datasets.file_tree import FileTree
from pipeline.errors import InputError
from tests.fixtures.golden import check_golden, refusals
from tests.fixtures.images import write_tar, write_zip

_FILES = {f"{name}/{i}.png": f"{name} {i}".encode() * 30 for name in ("cat", "dög") for i in range(3)}
_TREE = FileTree(files=tuple(sorted(_FILES)), folders=("cat", "dög"))

Writer = Callable[[Path, dict[str, bytes]], Path]
_WRITERS: dict[str, Writer] = {
    "tar": lambda path, files: write_tar(path, files, "w"),
    "tar.gz": lambda path, files: write_tar(path, files, "w:gz"),
    "tar.bz2": lambda path, files: write_tar(path, files, "w:bz2"),
    "tar.xz": lambda path, files: write_tar(path, files, "w:xz"),
    "zip": write_zip,
    "zip, stored": lambda path, files: write_zip(path, files, zipfile.ZIP_STORED),
    "zip, lzma": lambda path, files: write_zip(path, files, zipfile.ZIP_LZMA),
    "zip, bzip2": lambda path, files: write_zip(path, files, zipfile.ZIP_BZIP2),
}
_in_one_folder = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=_WRITERS)
def writer(request: pytest.FixtureRequest) -> Writer:
    return _WRITERS[request.param]


def _content(path: Path, names: set[str], max_bytes: int = 10_000) -> dict[str, bytes | UnreadableError]:
    return dict(open_archive(path).read(names, max_bytes))


def test_names_and_content_whatever_the_file_is_called(writer: Writer, tmp_path: Path) -> None:
    path = writer(tmp_path / "images.bin", _FILES)
    assert open_archive(path).tree() == _TREE
    assert _content(path, set(_FILES)) == _FILES
    assert list(_content(path, {"cat/1.png"})) == ["cat/1.png"]


def test_names_are_normalized(writer: Writer, tmp_path: Path) -> None:
    path = writer(tmp_path / "a", {"./cat//1.png": b"1"})
    assert open_archive(path).tree().files == ("cat/1.png",)
    assert _content(path, {"cat/1.png"}) == {"cat/1.png": b"1"}


def test_hidden_files_and_clutter_are_not_there(writer: Writer, tmp_path: Path) -> None:
    hidden = [".git/config", "cat/.DS_Store", "__MACOSX/cat/._1.png", "dog/Thumbs.db", ".hidden", "cat/.cache/x.png"]
    hidden += ["cat/thumbs.db", "cat/Desktop.ini"]
    path = writer(tmp_path / "a", {**_FILES, **dict.fromkeys(hidden, b"x")})
    assert open_archive(path).tree().files == _TREE.files


def test_names_that_differ_in_case_alone_are_two_files(writer: Writer, tmp_path: Path) -> None:
    files = {"a/X.png": b"1", "a/x.png": b"2", "A/x.png": b"3"}
    path = writer(tmp_path / "a", files)
    assert open_archive(path).tree().files == ("A/x.png", "a/X.png", "a/x.png")
    assert _content(path, set(files)) == files


_UNSAFE = {
    "absolute": "/etc/passwd",
    "a drive": "C:/windows/1.png",
    "upwards": "../escape.png",
    "down and upwards": "cat/../../escape.png",
    "upwards from a hidden folder": ".hidden/../../escape.png",
    "backslashes": "train\\cat\\1.png",
    "a line break": "cat/a\nb.png",
    "a line separator": "cat/a\u2028b.png",
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_unsafe_names_are_refused(writer: Writer, tmp_path: Path) -> None:
    """In the same words by every kind of archive."""

    def read(files: dict[str, bytes]) -> None:
        open_archive(writer(tmp_path / "a", files)).tree()

    cases = {name: partial(read, {**_FILES, path: b"x"}) for name, path in _UNSAFE.items()}
    cases["twice"] = partial(read, {"cat/1.png": b"1", "./cat/1.png": b"2"})
    check_golden("refused_archive_names.txt", refusals(cases, hidden={str(tmp_path): "FOLDER"}))


def _tar_of(path: Path, kind: bytes) -> Path:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("cat/1.png")
        member.type, member.linkname = kind, "cat/2.png"
        archive.addfile(member)
    return path


def _zip_of(path: Path, mode: int) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("cat/1.png")
        info.external_attr = mode << 16
        archive.writestr(info, "/etc/passwd")
    return path


def _tar_in_latin1(path: Path) -> Path:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        archive.addfile(tarfile.TarInfo("kätze/1.png"))
    return path


def _changed(path: Path, offset: int, change: Callable[[int], int]) -> Path:
    """Another byte of the first entry in a zip's directory."""
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02") + offset
    data[at] = change(data[at])
    path.write_bytes(data)
    return path


def test_members_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    kinds = ("SYMTYPE", "LNKTYPE", "CHRTYPE", "BLKTYPE", "FIFOTYPE")
    nameless = write_zip(tmp_path / "nameless.zip", {"x": b"1"})
    nameless.write_bytes(nameless.read_bytes().replace(b"x", b"\0"))  # where zipfile ends the name
    paths = {
        **{f"tar, {kind}": _tar_of(tmp_path / f"{kind}.tar", getattr(tarfile, kind)) for kind in kinds},
        "zip, link": _zip_of(tmp_path / "link.zip", 0o120777),
        "zip, device": _zip_of(tmp_path / "device.zip", 0o020666),
        "tar, not UTF-8": _tar_in_latin1(tmp_path / "latin1.tar"),
        "zip, encrypted": _changed(write_zip(tmp_path / "encrypted.zip", _FILES), 8, lambda flags: flags | 1),
        "zip, no name": nameless,
    }
    cases = {name: open_archive(path).tree for name, path in paths.items()}
    check_golden("refused_archive_members.txt", refusals(cases, hidden={str(tmp_path): "FOLDER"}))


class _UnflaggedInfo(zipfile.ZipInfo):
    """A member whose name lacks the flag of UTF-8: the command `zip` writes the bytes that the disk has."""

    encoding = "utf-8"

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:  # noqa: N802 - as in zipfile
        return self.filename.encode(self.encoding), self.flag_bits


class _DosInfo(_UnflaggedInfo):
    encoding = "cp437"


@pytest.mark.parametrize(
    ("kind", "names"), [(_UnflaggedInfo, ["dög/1.png", "猫/1.png", "cat/1.png"]), (_DosInfo, ["dög/1.png"])]
)
def test_names_in_a_zip_without_the_flag_of_utf8(kind: type[zipfile.ZipInfo], names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(kind(name), name)
    assert open_archive(path).tree().files == tuple(sorted(names))
    assert _content(path, set(names)) == {name: name.encode() for name in names}


@pytest.mark.parametrize("names", [["cat/a\u2028b.png"], ["dög/1.png", "dög/./1.png"]])
def test_names_in_a_zip_are_checked_as_decoded(names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number, name in enumerate(names):
            archive.writestr(zipfile.ZipInfo(name) if number else _UnflaggedInfo(name), b"x")
    with pytest.raises(InputError) as refused:
        open_archive(path).tree()
    assert refused.value.key == "prepare.path"


def test_unknown_compression_is_named(tmp_path: Path) -> None:
    path = _changed(write_zip(tmp_path / "a.zip", {"cat/1.png": b"1"}), 10, lambda _: 99)
    (content,) = _content(path, {"cat/1.png"}).values()
    assert isinstance(content, UnreadableError)
    assert "method" in str(content)


def test_bombs_are_not_unpacked(writer: Writer, tmp_path: Path) -> None:
    """A member larger than any image is skipped; the others are read."""
    path = writer(tmp_path / "a", {"cat/1.png": bytes(30_000_000), "cat/2.png": b"2"})
    content = _content(path, {"cat/1.png", "cat/2.png"}, max_bytes=1_000_000)
    assert str(content["cat/1.png"]).startswith("30 MB, more than an image")
    assert content["cat/2.png"] == b"2"


def _header(kind: bytes, size: int) -> bytes:
    """Return the header of a member with any size; of a sparse one, whose content has another size, of 1 byte."""
    info = tarfile.TarInfo("cat/1.png")
    info.type, info.size = kind, size
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    if kind == tarfile.GNUTYPE_SPARSE:
        block[386:495] = bytes(97) + b"00000000001\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_SPARSE], ids=["regular", "sparse"])
@pytest.mark.parametrize("size", [-512, -1024, -(1 << 40)])
def test_a_negative_size_does_not_lead_back_for_ever(tmp_path: Path, kind: bytes, size: int) -> None:
    path = tmp_path / "a.tar"
    whole = _header(tarfile.REGTYPE, 0)
    path.write_bytes(whole + _header(kind, size) + bytes(1024))
    with pytest.raises(InputError) as raised:
        open_archive(path).tree()
    assert raised.value.key == "prepare.path"
    with pytest.raises(InputError):
        list(open_archive(path).read({"cat/1.png"}, 100))


@_in_one_folder
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_cut_archive_never_passes_for_a_smaller_one(writer: Writer, tmp_path: Path, cut: float) -> None:
    path = writer(tmp_path / "a", _FILES)
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data))])
    try:
        tree = open_archive(path).tree()
    except InputError as error:
        assert error.key == "prepare.path"  # noqa: PT017 - either outcome is right
        return
    # A missing padding at a tar's end loses nothing.
    assert tree == _TREE
    assert _content(path, set(_FILES)) == _FILES


@_in_one_folder
@given(where=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255))
def test_a_changed_byte_raises_nothing_else(writer: Writer, tmp_path: Path, where: float, value: int) -> None:
    path = writer(tmp_path / "a", _FILES)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] = value
    path.write_bytes(data)
    try:
        source = open_archive(path)
        read = [name for name, _ in source.read(set(source.tree().files), 10_000)]
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert len(read) <= len(_FILES)


def test_a_broken_header_in_the_middle_is_no_end(tmp_path: Path) -> None:
    """`tarfile` alone stops there without a word."""
    path = write_tar(tmp_path / "a.tar", _FILES)
    data = bytearray(path.read_bytes())
    data[data.index(b"cat/2.png") + 150] ^= 0xFF
    path.write_bytes(data)
    with tarfile.open(path) as archive:
        assert len(archive.getnames()) == 2
    with pytest.raises(InputError) as refused:
        open_archive(path).tree()
    assert "2048" in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"not an archive at all", b"PK\x03\x04 nor this", b"\xfd7zXZ\x00 nor this"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "images.tar.xz"
    path.write_bytes(data)
    with pytest.raises(InputError) as raised:
        open_archive(path).tree()
    assert str(path) in str(raised.value)
    assert raised.value.key == "prepare.path"
    assert len(str(raised.value)) < 300


def test_versions_of_zip_to_come_are_refused(tmp_path: Path) -> None:
    path = _changed(write_zip(tmp_path / "a.zip", _FILES), 6, lambda _: 255)
    with pytest.raises(InputError) as refused:
        open_archive(path).tree()
    assert "25.5" in str(refused.value)


def test_an_empty_archive_has_no_files(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    zipfile.ZipFile(buffer, "w").close()
    path = tmp_path / "a.zip"
    path.write_bytes(buffer.getvalue())
    assert open_archive(path).tree() == FileTree(files=(), folders=())
