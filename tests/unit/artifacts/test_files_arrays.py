"""Arrays come back as they were, or with one line about what is wrong."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pipeline.artifacts.files import create_array, open_array, write_array
from pipeline.errors import InputError


@given(
    array=npst.arrays(
        dtype=st.sampled_from([np.uint8, np.float32, np.int64, np.bool_]),
        shape=npst.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5),
    )
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray) -> None:
    path = tmp_path_factory.mktemp("arrays") / "array.npy"
    write_array(path, array)
    read = open_array(path, dtype=array.dtype, ndim=array.ndim, rows=len(array))
    np.testing.assert_array_equal(read, array)


def test_equal_arrays_are_equal_bytes_whatever_their_memory_layout(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_array(tmp_path / "c.npy", array)
    write_array(tmp_path / "f.npy", np.asfortranarray(array))
    write_array(tmp_path / "view.npy", np.repeat(array, 2, axis=1)[:, ::2])
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_what_is_read_cannot_be_written_to(tmp_path: Path) -> None:
    write_array(tmp_path / "a.npy", np.zeros(3))
    read = open_array(tmp_path / "a.npy", dtype=np.float64, ndim=1)
    assert not read.flags.writeable


def test_interrupted_array_is_absent(tmp_path: Path) -> None:
    def write_half() -> None:
        with create_array(tmp_path / "a.npy", (4, 2), np.float32) as out:
            out[:2] = 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_array_larger_than_the_disk_is_refused_before_it_is_made(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError) as refused,
        create_array(tmp_path / "a.npy", (10**9, 10**6), np.float32),
    ):
        pass
    assert refused.value.key == str(tmp_path / "a.npy")
    assert re.findall(r"needs ([\d.]+) GB", str(refused.value)) == ["4000000.00"]
    assert list(tmp_path.iterdir()) == []


def test_a_small_array_on_a_full_disk_is_stated_in_a_fitting_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_500))
    with pytest.raises(InputError) as refused:
        write_array(tmp_path / "a.npy", np.zeros(2_000, np.uint8))
    assert re.findall(r"needs (.*) and the disk has (.*) free;", str(refused.value)) == [("2.00 kB", "1.50 kB")]


@pytest.mark.parametrize("length", [0, 1, 5, 60, 127])
def test_a_cut_array_is_damaged_without_advice_to_load_it_unsafely(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.npy"
    write_array(path, np.zeros(3))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError) as refused:
        open_array(path, dtype=np.float64, ndim=1)
    assert "not a valid .npy file" in str(refused.value)
    assert "pickle" not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_space_is_allocated_at_once(tmp_path: Path) -> None:
    with create_array(tmp_path / "a.npy", (1 << 20,), np.uint8):
        (temporary,) = tmp_path.iterdir()
        assert temporary.stat().st_blocks * 512 >= 1 << 20


def _damage(path: Path, kind: str) -> None:
    match kind:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(path.read_bytes()[:-1])
        case "text":
            path.write_text("not an array")
        case "folder":
            path.unlink()
            path.mkdir()
        case "link":
            path.unlink()
            path.symlink_to(path)
        case "archive":
            with path.open("wb") as file:
                np.savez(file, array=np.zeros(3))
        case "pickled":
            np.save(path, np.array([{}], dtype=object), allow_pickle=True)
        case "type":
            np.save(path, np.zeros((4, 2), np.float64))
        case "rank":
            np.save(path, np.zeros(4, np.float32))
        case "rows":
            np.save(path, np.zeros((3, 2), np.float32))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("missing", "missing; run `dvc repro`"),
        ("empty", "not a valid .npy file"),
        ("truncated", "not a valid .npy file"),
        ("text", "not a valid .npy file"),
        ("folder", "not a regular file"),
        ("link", "cannot be read (Too many levels of symbolic links)"),
        ("archive", "an .npz archive"),
        ("pickled", "holds Python objects"),
        ("type", "holds float64 of shape (4, 2), expected float32 of 2 dimensions"),
        ("rank", "holds float32 of shape (4,)"),
        ("rows", "has 3 rows, its manifest 4"),
    ],
)
def test_unsound_file_gets_one_line(tmp_path: Path, kind: str, expected: str) -> None:
    path = tmp_path / "a.npy"
    write_array(path, np.zeros((4, 2), np.float32))
    _damage(path, kind)
    with pytest.raises(InputError) as raised:
        open_array(path, dtype=np.float32, ndim=2, rows=4)
    assert str(raised.value).startswith(f"{path}: ")
    assert expected in str(raised.value)
