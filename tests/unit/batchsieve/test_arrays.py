"""Arguments of another kind give one line that names the argument."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchsieve import compare_runs, find_issues, look, sieve
from batchsieve.arrays import checked_features, probability_columns
from pipeline.errors import InputError

_RAGGED: list[Any] = [[0.1, 0.9], [0.2]]
_LABELS = np.arange(2)
_ON_ANOTHER_DEVICE: Any = torch.zeros(2, 2, device="meta")


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: find_issues(_RAGGED, features=np.zeros((2, 2))), "labels"),
        (lambda: find_issues(_LABELS, features=_RAGGED), "features"),
        (lambda: find_issues(_LABELS, _RAGGED), "pred_probs"),
        (lambda: find_issues(_LABELS, np.eye(2), class_names=_RAGGED), "class_names"),
        (lambda: find_issues(_LABELS, features=_ON_ANOTHER_DEVICE), "features"),
        (lambda: sieve(_RAGGED, _LABELS), "features"),
        (lambda: sieve(_ON_ANOTHER_DEVICE, _LABELS), "features"),
    ],
)
def test_what_is_no_array_is_named(call: Callable[[], object], key: str) -> None:
    with pytest.raises(InputError) as raised:
        call()
    assert raised.value.key == key


_FEATURES = np.random.default_rng(0).normal(size=(120, 4))
_BINARY = np.arange(120) % 2
_PICTURES = np.zeros((12, 4, 4, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("key", "call"),
    [
        ("a", lambda: compare_runs([[0.9], [0.8, 0.7]], [0.9, 0.8], margin=0.01)),
        ("margin", lambda: compare_runs([0.9], [0.8], margin="much")),  # type: ignore[arg-type]
        ("names", lambda: compare_runs([0.9], [0.8], margin=0.01, names=("a",))),  # type: ignore[arg-type]
        ("seed", lambda: find_issues(_BINARY, features=_FEATURES, seed=1.5)),  # type: ignore[arg-type]
        ("folds", lambda: find_issues(_BINARY, features=_FEATURES, folds="5")),  # type: ignore[arg-type]
        ("n_neighbors", lambda: find_issues(_BINARY, features=_FEATURES, n_neighbors=2.5)),  # type: ignore[arg-type]
        ("n_components", lambda: sieve(_FEATURES, _BINARY, n_components=True)),
        ("threshold", lambda: sieve(_FEATURES, _BINARY, scorer="margin", threshold="a")),  # type: ignore[arg-type]
        ("eps", lambda: sieve(_FEATURES, _BINARY, eps=[1])),  # type: ignore[arg-type]
        ("scorer", lambda: sieve(_FEATURES, _BINARY, scorer=None)),  # type: ignore[arg-type]
        ("images", lambda: look([_PICTURES[0], _PICTURES[0, 1:]] * 6, _BINARY[:12], features=_FEATURES[:12])),
        ("images", lambda: look(_PICTURES, np.arange(12), features=_FEATURES[:12])),
    ],
)  # fmt: skip
def test_an_argument_of_another_kind_is_named(key: str, call: Callable[[], object]) -> None:
    with pytest.raises(InputError) as raised:
        call()
    assert str(raised.value).startswith(f"{key}: ")
    assert "\n" not in str(raised.value)


def test_an_error_names_only_arguments_that_the_function_has() -> None:
    with pytest.raises(InputError) as raised:
        look(_PICTURES, [0] * 11 + [1], features=_FEATURES[:12])
    assert not [word for word in ("folds,", "pred_probs") if word in str(raised.value)]


def test_class_names_may_be_objects_as_those_of_scikit_learn() -> None:
    names: Any = np.array(["cat", "dog"], dtype=object)
    probabilities = np.eye(2)[_BINARY]
    of_objects, of_strings = (
        find_issues(names[_BINARY], probabilities, class_names=kind) for kind in (names, ["cat", "dog"])
    )
    assert of_objects.score.tolist() == of_strings.score.tolist()


def _masked(values: Any) -> Any:
    return np.ma.masked_array(values, mask=np.arange(np.size(values)).reshape(np.shape(values)) == 3)


@pytest.mark.parametrize(
    ("key", "call"),
    [
        ("labels", lambda: find_issues(_masked(_BINARY), features=_FEATURES)),
        ("features", lambda: find_issues(_BINARY, features=_masked(_FEATURES))),
        ("features", lambda: sieve(_masked(_FEATURES), _BINARY)),
        ("pred_probs", lambda: find_issues(_BINARY, _masked(np.eye(2)[_BINARY]))),
        ("a", lambda: compare_runs(_masked([0.9, 0.8, 0.7, 0.6]), [0.9, 0.8], margin=0.01)),
    ],
)
def test_masked_values_are_refused(key: str, call: Callable[[], object]) -> None:
    with pytest.raises(InputError, match="masked values") as raised:
        call()
    assert raised.value.key == key


def _matrix(values: Any) -> Any:
    with warnings.catch_warnings(action="ignore", category=PendingDeprecationWarning):
        return np.matrix(values)


@pytest.mark.parametrize("kind", [_matrix, np.ma.masked_array])
def test_subclasses_of_arrays_are_as_plain_arrays(kind: Callable[[Any], Any]) -> None:
    plain = find_issues(_BINARY, np.eye(2)[_BINARY] * 0.8 + 0.1, _FEATURES)
    found = find_issues(_BINARY, kind(np.eye(2)[_BINARY] * 0.8 + 0.1), kind(_FEATURES))
    assert type(found.score) is np.ndarray
    np.testing.assert_array_equal(found.score, plain.score)
    assert found.reason.tolist() == plain.reason.tolist()


def test_a_memory_map_is_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", _FEATURES.astype(np.float32))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    assert np.shares_memory(checked_features(mapped, len(mapped)), mapped)
    assert np.shares_memory(probability_columns(mapped[10:]), mapped)
