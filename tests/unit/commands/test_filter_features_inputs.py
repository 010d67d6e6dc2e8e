"""External features, labels and probabilities: reading them, and one-line errors."""

import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray
from sklearn.linear_model import LogisticRegression

from pipeline.commands.filter_features.inputs import (
    ExternalFeatures,
    _label_records,
    class_order,
    read_external_features,
)
from pipeline.errors import InputError
from tests.fixtures.golden import check_golden, refusals

_LABELS = ["cat", "dog", "yak"] * 4
_N = len(_LABELS)


def _csv(folder: Path, text: str | bytes) -> None:
    (folder / "y.csv").write_bytes(text if isinstance(text, bytes) else text.encode())


def _lines(*labels: str) -> str:
    return "label\n" + "".join(f"{label}\n" for label in labels)


def _probabilities(order: tuple[int, ...] = (0, 1, 2)) -> NDArray[np.float64]:
    """0.8 for the label of each row, by columns in `order`."""
    return (np.full((3, 3), 0.1) + 0.7 * np.eye(3))[np.arange(_N) % 3][:, order]


def _write(folder: Path) -> None:
    np.save(folder / "f.npy", np.random.default_rng(0).normal(size=(_N, 2)).astype(np.float32))
    np.save(folder / "p.npy", _probabilities())
    _csv(folder, _lines(*_LABELS))


def _read(folder: Path) -> ExternalFeatures:
    return read_external_features(folder / "f.npy", folder / "y.csv", folder / "p.npy")


@given(st.sets(st.integers(-30, 30), min_size=1))
def test_integer_classes_are_in_numeric_order(numbers: set[int]) -> None:
    assert class_order([str(number) for number in numbers]) == [str(number) for number in sorted(numbers)]


@pytest.mark.parametrize("labels", [["1", "10", "2", "x"], ["1.0", "10.0", "2.0"], ["Yak", "cat", "dog"], ["1", "²"]])
def test_other_labels_are_classes_in_alphabetical_order(labels: list[str]) -> None:
    assert class_order(reversed(labels)) == labels


@pytest.mark.parametrize("names", [[str(number) for number in range(11)], ["Yak", "cat", "dog"]])
def test_the_order_is_that_of_scikit_learns_columns(tmp_path: Path, names: list[str]) -> None:
    rng = np.random.default_rng(0)
    numbers = np.repeat(np.arange(len(names)), 5)
    points = rng.normal(scale=9, size=(len(names), 4))[numbers] + rng.normal(size=(len(numbers), 4))
    labels = numbers if names[0] == "0" else np.array(names)[numbers]
    model = LogisticRegression(max_iter=1000).fit(points, labels)
    np.save(tmp_path / "f.npy", points)
    np.save(tmp_path / "p.npy", model.predict_proba(points))
    _csv(tmp_path, _lines(*map(str, labels)))
    read = _read(tmp_path)
    assert read.class_names == names
    assert read.probabilities is not None
    assert (read.probabilities.argmax(axis=1) == read.labels).mean() > 0.9


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", ">f8"])
def test_floats_of_any_precision_do(tmp_path: Path, dtype: DTypeLike) -> None:
    _write(tmp_path)
    for name in ("f.npy", "p.npy"):
        np.save(tmp_path / name, np.load(tmp_path / name).astype(dtype))
    read = _read(tmp_path)
    assert read.probabilities is not None
    assert read.features.dtype == read.probabilities.dtype == np.float32
    np.testing.assert_allclose(read.probabilities, _probabilities(), atol=1e-3)


def test_labels_that_differ_in_composition_or_white_space_are_one(tmp_path: Path) -> None:
    _write(tmp_path)
    spellings = ["été", unicodedata.normalize("NFD", "été"), " été ", "\tdog"]
    _csv(tmp_path, _lines(*spellings * 3))
    read = read_external_features(tmp_path / "f.npy", tmp_path / "y.csv", None)
    assert read.class_names == ["dog", "été"]
    assert read.labels.tolist() == [1, 1, 1, 0] * 3


def test_paths_are_passed_on_and_other_columns_are_not(tmp_path: Path) -> None:
    _write(tmp_path)
    _csv(tmp_path, b"\xef\xbb\xbfnote,label,path,note\r\n" + b'"a\nb",cat,"x, 1.png",c\r\n' * _N)
    assert read_external_features(tmp_path / "f.npy", tmp_path / "y.csv", None).paths == ["x, 1.png"] * _N


def _save(name: str, array: NDArray[np.generic]) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, array)


def _bytes(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def _text(text: str | bytes) -> Callable[[Path], None]:
    return lambda folder: _csv(folder, text)


def _npz(folder: Path) -> None:
    np.savez(folder / "f.npz", f=np.zeros((_N, 2)))
    (folder / "f.npz").replace(folder / "f.npy")


def _nan(value: float) -> NDArray[np.float64]:
    features = np.arange(2.0 * _N).reshape(_N, 2)
    features[3, 1] = value
    return features


_NEGATIVE = _probabilities() + np.array([0.2, -0.2, 0])
_FEATURES, _Y_CSV, _P_NPY = "--features f.npy", "--labels y.csv", "--probabilities p.npy"
_BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no matrix": (_save("f.npy", np.zeros(7)), _FEATURES),
    "integers": (_save("f.npy", np.zeros((_N, 3), np.int64)), _FEATURES),
    "no rows": (_save("f.npy", np.zeros((0, 3))), _FEATURES),
    "objects": (_save("f.npy", np.array([{}], dtype=object)), _FEATURES),
    "NaN": (_save("f.npy", _nan(np.nan)), f"{_FEATURES}: row 3"),
    "beyond float32": (_save("f.npy", _nan(1e300)), f"{_FEATURES}: row 3"),
    "equal rows": (_save("f.npy", np.ones((_N, 2))), _FEATURES),
    "empty array file": (_bytes("f.npy", b""), _FEATURES),
    "text": (_bytes("f.npy", b"no array"), _FEATURES),
    "half an archive": (_bytes("f.npy", b"PK\x03\x04"), _FEATURES),
    "archive": (_npz, _FEATURES),
    "no features": (lambda folder: (folder / "f.npy").unlink(), _FEATURES),
    "fewer labels": (_text(_lines(*_LABELS[:-1])), f"{_Y_CSV}: has 11 rows for 12 rows"),
    "other columns": (_text("name,class\na,b\n"), f"{_Y_CSV}: line 1: "),
    "column twice": (_text("label,label\na,b\n"), f"{_Y_CSV}: line 1: "),
    "path twice": (_text("path,label,path\na,b,c\n"), f"{_Y_CSV}: line 1: "),
    "empty table": (_text(""), _Y_CSV),
    "UTF-16": (_text(_lines(*_LABELS).encode("utf-16")), _Y_CSV),
    "Latin-1": (_text(_lines("été", *_LABELS[1:]).encode("latin-1")), _Y_CSV),
    "label missing": (_text('path,label\n"a\nb",cat\n' + "x, \n" * (_N - 1)), f"{_Y_CSV}: line 4 "),
    "fields missing": (_text("path,label\nx\n"), f"{_Y_CSV}: line 2: "),
    "no labels": (lambda folder: (folder / "y.csv").unlink(), _Y_CSV),
    "no probabilities": (lambda folder: (folder / "p.npy").unlink(), _P_NPY),
    "fewer probabilities": (_save("p.npy", _probabilities()[1:]), f"{_P_NPY}: has 11 rows for 12 rows"),
    "fewer columns": (_save("p.npy", np.ones((_N, 1))), f"{_P_NPY}: has 1 columns for 3 classes"),
    "negative": (_save("p.npy", _NEGATIVE), f"{_P_NPY}: row 0 holds -0.1"),
    "no sum of 1": (_save("p.npy", 2 * _probabilities()), f"{_P_NPY}: row 0 sums to 2"),
    "infinities": (_save("p.npy", np.tile([np.inf, -np.inf, 1], (_N, 1))), f"{_P_NPY}: row 0 sums to nan"),
    "NaN probability": (_save("p.npy", np.full((_N, 3), np.nan)), f"{_P_NPY}: row 0 sums to nan"),
    "other order": (_save("p.npy", _probabilities((2, 0, 1))), _P_NPY),
}


@pytest.mark.parametrize(("spoil", "start"), _BAD.values(), ids=_BAD)
def test_a_bad_file_gets_one_line(tmp_path: Path, spoil: Callable[[Path], object], start: str) -> None:
    _write(tmp_path)
    _read(tmp_path)
    spoil(tmp_path)
    with pytest.raises(InputError) as raised:
        _read(tmp_path)
    line = str(raised.value).replace(f"{tmp_path}/", "")
    assert line.startswith(start)
    assert not {"dvc", "manifest", "learning_rate"} & set(line.replace("`", " ").replace(".", " ").split())


# Their lines end in NumPy's or Python's own words.
_QUOTED = {"empty array file", "text", "half an archive", "UTF-16", "Latin-1"}


def test_refusals(tmp_path: Path) -> None:
    def read(spoil: Callable[[Path], object]) -> None:
        _write(tmp_path)
        spoil(tmp_path)
        _read(tmp_path)

    cases = {name: partial(read, spoil) for name, (spoil, _) in _BAD.items() if name not in _QUOTED}
    check_golden("refused_features.txt", refusals(cases, hidden={str(tmp_path): "FOLDER"}))


def test_probabilities_of_two_classes_must_beat_a_coin(tmp_path: Path) -> None:
    _write(tmp_path)
    _csv(tmp_path, _lines(*["cat", "dog"] * 6))
    for order, sound in (((0, 1), True), ((1, 0), False)):
        np.save(tmp_path / "p.npy", np.tile([[0.9, 0.1], [0.1, 0.9]], (6, 1))[:, order])
        if sound:
            assert _read(tmp_path).class_names == ["cat", "dog"]
        else:
            with pytest.raises(InputError) as raised:
                _read(tmp_path)
            assert raised.value.key == f"--probabilities {tmp_path / 'p.npy'}"


def test_probabilities_without_labels_are_refused(tmp_path: Path) -> None:
    _write(tmp_path)
    with pytest.raises(InputError) as raised:
        read_external_features(tmp_path / "f.npy", None, tmp_path / "p.npy")
    assert raised.value.key == f"--probabilities {tmp_path / 'p.npy'}"


def test_a_manifest_without_a_label_is_refused_by_its_row(tmp_path: Path) -> None:
    """A missing label is no class called None."""
    _write(tmp_path)
    manifest = tmp_path / "train.parquet"
    names: list[str | None] = [*_LABELS]
    pyarrow.parquet.write_table(pa.table({"label_name": names}), manifest)
    assert read_external_features(tmp_path / "f.npy", manifest, None).class_names == ["cat", "dog", "yak"]
    names[4] = None
    pyarrow.parquet.write_table(pa.table({"label_name": names}), manifest)
    with pytest.raises(InputError) as raised:
        read_external_features(tmp_path / "f.npy", manifest, None)
    assert str(raised.value).startswith(f"--labels {manifest}: line 5 has no label")


def test_a_manifest_that_is_not_utf8_is_refused_in_one_line(tmp_path: Path) -> None:
    names = pa.array([b"a", b"\xff"]).view(pa.utf8())
    pyarrow.parquet.write_table(pa.table({"label_name": names}), tmp_path / "y.parquet")
    with pytest.raises(InputError, match="not valid UTF-8 text"):
        list(_label_records(tmp_path / "y.parquet", "--labels y.parquet"))


@pytest.mark.parametrize("content", [None, b"no table"])
def test_a_manifest_that_cannot_be_read_is_not_to_be_deleted(content: bytes | None, tmp_path: Path) -> None:
    manifest = tmp_path / "y.parquet"
    if content is not None:
        manifest.write_bytes(content)
    with pytest.raises(InputError) as refused:
        list(_label_records(manifest, f"--labels {manifest}"))
    assert refused.value.key == f"--labels {manifest}"
    assert "delete" not in str(refused.value)
    assert "dvc repro" not in str(refused.value)
