"""Archives as sources: what is read, what is refused, and that damage is never silent."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_images import write_tar, write_zip

from pipeline.datasets.archives import open_archive
from pipeline.datasets.images import UnreadableError
from pipeline.datasets.tree import FileTree
from pipeline.errors import InputError

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
}
_in_one_folder = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


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


def test_names_are_normalised(writer: Writer, tmp_path: Path) -> None:
    path = writer(tmp_path / "a", {"./cat//1.png": b"1"})
    assert open_archive(path).tree().files == ("cat/1.png",)
    assert _content(path, {"cat/1.png"}) == {"cat/1.png": b"1"}


def test_hidden_files_and_clutter_are_not_there(writer: Writer, tmp_path: Path) -> None:
    hidden = [".git/config", "cat/.DS_Store", "__MACOSX/cat/._1.png", "dog/Thumbs.db", ".hidden", "cat/.cache/x.png"]
    path = writer(tmp_path / "a", {**_FILES, **dict.fromkeys(hidden, b"x")})
    assert open_archive(path).tree().files == _TREE.files


def test_names_that_differ_in_case_alone_are_two_files(writer: Writer, tmp_path: Path) -> None:
    files = {"a/X.png": b"1", "a/x.png": b"2", "A/x.png": b"3"}
    path = writer(tmp_path / "a", files)
    assert open_archive(path).tree().files == ("A/x.png", "a/X.png", "a/x.png")
    assert _content(path, set(files)) == files


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("/etc/passwd", "has an absolute path"),
        ("C:/windows/1.png", "has an absolute path"),
        ("../escape.png", "leads out of the archive"),
        ("cat/../../escape.png", "leads out of the archive"),
        (".hidden/../../escape.png", "leads out of the archive"),
        ("train\\cat\\1.png", "has a backslash"),
        ("cat/a\nb.png", "holds a line break"),
        ("cat/a\u2028b.png", "holds a line break"),
    ],
)
def test_unsafe_names_are_refused(writer: Writer, tmp_path: Path, name: str, problem: str) -> None:
    path = writer(tmp_path / "a", {**_FILES, name: b"x"})
    with pytest.raises(InputError, match=problem) as raised:
        open_archive(path).tree()
    assert str(raised.value).startswith(f"prepare.path: {path}: ")
    assert "not a sound" not in str(raised.value)
    assert repr(name)[1:-1] in str(raised.value) or ascii(name)[1:-1] in str(raised.value)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_are_there_twice_are_refused(writer: Writer, tmp_path: Path) -> None:
    path = writer(tmp_path / "a", {"cat/1.png": b"1", "./cat/1.png": b"2"})
    with pytest.raises(InputError, match=r"member './cat/1.png' is there twice"):
        open_archive(path).tree()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (tarfile.SYMTYPE, "is a link"),
        (tarfile.LNKTYPE, "is a link"),
        (tarfile.CHRTYPE, "is a device or pipe"),
        (tarfile.BLKTYPE, "is a device or pipe"),
        (tarfile.FIFOTYPE, "is a device or pipe"),
    ],
)
def test_tar_members_that_are_no_files_are_refused(tmp_path: Path, kind: bytes, said: str) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("cat/1.png")
        member.type, member.linkname = kind, "cat/2.png"
        archive.addfile(member)
    with pytest.raises(InputError, match=rf"member 'cat/1.png' {said}"):
        open_archive(path).tree()


@pytest.mark.parametrize(("mode", "said"), [(0o120777, "is a link"), (0o020666, "is a device or pipe")])
def test_zip_members_that_are_no_files_are_refused(tmp_path: Path, mode: int, said: str) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("cat/1.png")
        info.external_attr = mode << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(InputError, match=rf"member 'cat/1.png' {said}"):
        open_archive(path).tree()


def test_tar_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        archive.addfile(tarfile.TarInfo("kätze/1.png"))
    with pytest.raises(InputError, match=r"'k\\udce4tze/1.png' .*not UTF-8"):
        open_archive(path).tree()


def test_encrypted_zip_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", _FILES)
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # the first entry's flags in the directory
    path.write_bytes(data)
    with pytest.raises(InputError, match="is encrypted; pack it without a password"):
        open_archive(path).tree()


def test_unknown_compression_is_named(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"cat/1.png": b"1"})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 10] = 99
    path.write_bytes(data)
    (content,) = _content(path, {"cat/1.png"}).values()
    assert isinstance(content, UnreadableError)
    assert "method" in str(content)


def test_bombs_are_not_unpacked(writer: Writer, tmp_path: Path) -> None:
    """A member larger than any image is passed over; the others are read."""
    path = writer(tmp_path / "a", {"cat/1.png": bytes(30_000_000), "cat/2.png": b"2"})
    content = _content(path, {"cat/1.png", "cat/2.png"}, max_bytes=1_000_000)
    assert str(content["cat/1.png"]).startswith("30 MB, more than an image")
    assert content["cat/2.png"] == b"2"


@_in_one_folder
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_cut_archive_never_passes_for_a_smaller_one(writer: Writer, tmp_path: Path, cut: float) -> None:
    path = writer(tmp_path / "a", _FILES)
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data))])
    try:
        tree = open_archive(path).tree()
    except InputError as error:
        assert "not a sound" in str(error)  # noqa: PT017 - either outcome is right
        return
    # The padding at a tar's end is no loss.
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
    with pytest.raises(InputError, match="cut off or broken after 2048 bytes"):
        open_archive(path).tree()


@pytest.mark.parametrize("data", [b"", b"not an archive at all", b"PK\x03\x04 nor this", b"\xfd7zXZ\x00 nor this"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "images.tar.xz"
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"{path}: not a sound .tar, .* or .zip archive") as raised:
        open_archive(path).tree()
    assert len(str(raised.value)) < 300


def test_versions_of_zip_to_come_are_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", _FILES)
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 255
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"not a sound .* \(zip file version 25.5\)"):
        open_archive(path).tree()


def test_members_without_a_name_are_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"x": b"1"})
    data = path.read_bytes().replace(b"x", b"\0")  # where zipfile ends the name
    path.write_bytes(data)
    with pytest.raises(InputError, match="member '' has no name"):
        open_archive(path).tree()


def test_an_empty_archive_has_no_files(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    zipfile.ZipFile(buffer, "w").close()
    path = tmp_path / "a.zip"
    path.write_bytes(buffer.getvalue())
    assert open_archive(path).tree() == FileTree(files=(), folders=())
