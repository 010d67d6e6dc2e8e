"""Bad images, archives and settings: exit code 2, one line with the fix, and no earlier result is lost."""

import errno
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import InputError
from pipeline.paths import DataPaths
from tests.fixtures.images import (
    huge_png,
    one_tree,
    photo,
    run_prepare,
    split_tree,
    write_folder,
    write_tar,
    write_zip,
)
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import ROOT, folder_arguments, write_params
from tests.fixtures.slow import quick_first


def _error(folder: Path, path: Path | None, capsys: pytest.CaptureFixture[str], **config: Any) -> str:
    """Return the error of the stage; check its exit code, its only line, and that an earlier result is still there."""
    good = write_folder(folder / "earlier", split_tree())
    data = run_prepare(folder, good)
    before = _contents(data)
    capsys.readouterr()
    with pytest.raises(SystemExit) as raised:
        run_prepare(folder, path, **config)
    assert raised.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    assert len(lines[0]) < 500
    assert _contents(data) == before
    return lines[0].removeprefix("error: ")


def _contents(data: DataPaths) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in data.prepare_metrics.parent.iterdir()}


_JPEG = photo(0, (64, 64), "JPEG")


@pytest.mark.parametrize(
    ("content", "reason"),
    quick_first(
        2,
        [
            pytest.param(_JPEG[:-40], "", id="truncated"),
            pytest.param(huge_png(9_000, 9_000), "9000x9000 pixels", id="over the limit"),
            pytest.param(b"", "", id="zero bytes"),
            pytest.param(b"\xff\xd8\xff garbage", "", id="corrupt"),
            pytest.param(b"name,label\n", "", id="not an image"),
            pytest.param(huge_png(60_000, 60_000), "", id="decompression bomb"),
            pytest.param(b"\x93NUMPY", "", id="an array"),
        ],
    ),
)
def test_unreadable_image(content: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_folder(tmp_path / "images", {**split_tree(), "train/cat/2.png": content})
    assert _error(tmp_path, path, capsys).startswith(f"prepare.path: {path}: train/cat/2.png: {reason}")


@pytest.mark.parametrize("pack", [write_zip, write_tar], ids=["zip", "tar"])
def test_unreadable_image_of_an_archive(
    pack: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = pack(tmp_path / "images", {**split_tree(), "train/cat/2.png": _JPEG[:-40]})
    assert _error(tmp_path, path, capsys).startswith(f"prepare.path: {path}: train/cat/2.png: ")


def test_the_limit_is_a_parameter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: photo(seed, (200, 100)) for seed, name in enumerate(split_tree())}
    path = write_folder(tmp_path / "images", files)
    run_prepare(tmp_path, path, max_megapixels=0.02)
    assert InputError(_error(tmp_path, path, capsys, max_megapixels=0.019)).key == "prepare.path"


def test_a_class_whose_images_are_all_unreadable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: b"" if name.startswith("train/cat") else data for name, data in split_tree().items()}
    path = write_folder(tmp_path / "images", files)
    error = _error(tmp_path, path, capsys, unreadable="skip")
    assert error.startswith(f"prepare.path: {path}: class cat has 0 ")


def _nothing(folder: Path) -> Path:
    return folder / "images"


def _empty_folder(folder: Path) -> Path:
    (folder / "images").mkdir()
    return folder / "images"


def _of(files: dict[str, bytes]) -> Callable[[Path], Path]:
    return lambda folder: write_folder(folder / "images", files)


def _raw(data: bytes) -> Callable[[Path], Path]:
    return lambda folder: write_folder(folder, {"images": data}) / "images"


def _tar(files: dict[str, bytes], mode: str = "w", *, keep: float = 1.0) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = write_tar(folder / "images", files, mode)
        data = path.read_bytes()
        path.write_bytes(data[: int(keep * len(data))])
        return path

    return write


def _tar_with_link(folder: Path) -> Path:
    path = write_tar(folder / "images", split_tree())
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo("train/cat/bad.png")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member, io.BytesIO())
    return path


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "images")
    return folder / "images"


_TREE = split_tree()


@pytest.mark.parametrize(
    ("make", "config", "named"),
    quick_first(
        6,
        [
            pytest.param(_nothing, {}, "", id="missing"),
            pytest.param(_of(one_tree(("cat",))), {"test_size": 0.2}, ": cat", id="one class"),
            pytest.param(_of(one_tree()), {}, "prepare.test_size", id="no test_size"),
            pytest.param(_tar({**_TREE, "../x.png": b"x"}), {}, "'../x.png' ", id="upwards"),
            pytest.param(_tar(_TREE, "w:xz", keep=0.7), {}, "", id="truncated xz"),
            pytest.param(_raw(b"x"), {"dataset": "cifar10"}, "6d958be0", id="checksum"),
            pytest.param(_empty_folder, {}, "", id="empty"),
            pytest.param(_fifo, {}, "", id="pipe"),
            pytest.param(_of(_TREE), {"test_size": 0.2}, "prepare.test_size: 0.2 ", id="needless share"),
            pytest.param(_of({**_TREE, "test/emu/1.png": photo(0)}), {}, "class emu ", id="class of test"),
            pytest.param(_of(one_tree(n=2)), {"test_size": 0.2}, "class cat has 1 ", id="too few to split"),
            pytest.param(_tar_with_link, {}, "'train/cat/bad.png' ", id="symbolic link"),
            pytest.param(_tar(_TREE, "w:gz", keep=0.7), {}, "", id="truncated gz"),
            pytest.param(_tar(_TREE, keep=0.5), {}, "", id="truncated tar"),
            pytest.param(_raw(b"\xfd7zXZ\x00 wrong"), {}, "", id="wrong magic"),
            pytest.param(_raw(photo(0)), {}, "", id="an image"),
            pytest.param(_raw(b""), {}, "", id="empty file"),
            pytest.param(_nothing, {"dataset": "cifar100"}, "", id="no CIFAR archive"),
        ],
    ),
)
def test_bad_data_set(
    make: Callable[[Path], Path],
    config: dict[str, Any],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = make(tmp_path)
    error = _error(tmp_path, path, capsys, **config)
    assert InputError(error).key == ("prepare.test_size" if named.startswith("prepare.test_size") else "prepare.path")
    assert named in error
    assert str(path) in error
    assert ";" in error, "the fix"


def test_nothing_is_written_outside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tar(tmp_path / "images", {**_TREE, "../escaped.png": photo(0)})
    _error(tmp_path, path, capsys)
    assert not list(tmp_path.parent.rglob("escaped*"))


@pytest.fixture
def fresh_opener() -> Iterator[None]:
    """Reset the opener of `urllib` before and after the test: it keeps the proxies of its first request."""
    urllib.request.install_opener(None)
    yield
    urllib.request.install_opener(None)


@pytest.mark.usefixtures("fresh_opener")
def test_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    error = _error(tmp_path, None, capsys, dataset="cifar10")
    assert InputError(error).key == "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    assert error.endswith(f" {tmp_path / 'work/downloads/cifar-10-python.tar.gz'}")


def test_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocation of the space fails, although the file system reported enough."""
    path = write_folder(tmp_path / "images", one_tree())
    data = run_prepare(tmp_path, path, test_size=0.2)
    before = _contents(data)
    capsys.readouterr()

    allocate, sizes = os.posix_fallocate, []

    def no_space(file: int, offset: int, n_bytes: int) -> None:
        sizes.append(n_bytes)
        if len(sizes) > 2:  # the first two are those of the checks at the start
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(file, offset, n_bytes)

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(SystemExit) as raised:
        run_prepare(tmp_path, path, test_size=0.3)
    assert raised.value.code == 2
    assert printed_error(capsys.readouterr().err).key == str(data.images("train"))
    assert _contents(data) == before


@pytest.mark.slow
def test_killed_and_run_again(tmp_path: Path) -> None:
    """SIGKILL comes while the stage decodes; the next run gives the result of an uninterrupted one."""
    files = {name: photo(seed, (3000, 2000), "JPEG") for seed, name in enumerate(split_tree(n_train=12, n_test=3))}
    path = write_tar(tmp_path / "images.tar", files)
    expected = _contents(run_prepare(_made(tmp_path / "undisturbed"), path))

    folder = _made(tmp_path / "killed")
    settings = {"dataset": "image_folder", "path": str(path), "image_size": 8, "test_size": None}
    write_params(folder, prepare=settings)
    command = [sys.executable, "-m", "pipeline.stages.prepare", *folder_arguments(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not list(folder.glob("data/prepare/.train.npy.*.tmp")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    left = {path.name for path in (folder / "data/prepare").iterdir()}
    assert left
    assert all(name.endswith(".tmp") for name in left), "no file that counts"
    assert _contents(run_prepare(folder, path)) == expected


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
