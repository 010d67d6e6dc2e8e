"""Which near duplicates are dropped: properties of the choice, and the table."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.artifacts.overrides import Override
from pipeline.filtering.near_duplicates import (
    TrainingDuplicates,
    duplicates_metrics,
    duplicates_table,
    redundant_images,
)
from pipeline.reduction.near_duplicates import NearDuplicates

_N, _TEST = 12, 4


def _images(split: str, n: int) -> pa.Table:
    labels = np.arange(n) % 2
    return pa.table(
        {
            "path": [f"{split}/{row}.png" for row in range(n)],
            "label": labels,
            "label_name": [("cat", "dog")[label] for label in labels],
        }
    )


def _duplicates(pairs: list[tuple[int, int]]) -> TrainingDuplicates:
    found = NearDuplicates(
        pairs=np.array(pairs, dtype=np.int64).reshape(-1, 2),
        similarity=np.linspace(1, 0.9, len(pairs), dtype=np.float32),
        chance_pairs=np.linspace(0, 1, len(pairs)),
        pixel_correlation=np.ones(len(pairs), dtype=np.float32),
        dimension=9.0,
        n_candidates=len(pairs),
        search={"method": "exact"},
    )
    return TrainingDuplicates(found=found, train=_images("train", _N), test=_images("test", _TEST))


def _override(decision: str) -> Override:
    label = "dog" if decision == "relabel" else ""
    return Override(path="", sha256="", decision=decision, label=label, note="", timestamp="", line=1)


_PAIRS = st.lists(
    st.tuples(st.integers(0, _N - 1), st.integers(0, _N + _TEST - 1)).filter(lambda pair: pair[0] < pair[1]),
    max_size=30,
    unique=True,
)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    pairs=_PAIRS,
    dropped=st.sets(st.integers(0, _N - 1)),
    by_hand=st.dictionaries(st.integers(0, _N - 1), st.sampled_from(["keep", "drop", "relabel"]), max_size=4),
    seed=st.integers(0, 99),
)
def test_of_no_pair_both_stay_and_no_image_is_lost(
    pairs: list[tuple[int, int]], dropped: set[int], by_hand: dict[int, str], seed: int
) -> None:
    keep = ~np.isin(np.arange(_N), list(dropped))
    overrides = {row: _override(decision) for row, decision in by_hand.items()}
    redundant = redundant_images(_duplicates(pairs), keep, np.random.default_rng(seed).random(_N), overrides)
    left = keep.copy()
    left[list(redundant)] = False
    for row, override in overrides.items():
        assert row not in redundant
        left[row] = override.keeps
    near = {frozenset(pair) for pair in pairs}
    for row, other in redundant.items():
        assert keep[row]
        assert {row, other} in near
        assert other >= _N or left[other], "the dropped image must be a duplicate of one that is left"
    for first, second in pairs:
        if second >= _N:
            assert not left[first] or first in overrides
        else:
            assert not (left[first] and left[second]) or {first, second} <= set(overrides)


def test_the_less_suspect_image_of_a_pair_stays() -> None:
    duplicates = _duplicates([(0, 1), (2, 3), (4, 13)])
    scores = np.full(_N, 0.2)
    scores[0] = 0.4
    redundant = redundant_images(duplicates, np.ones(_N, dtype=np.bool_), scores, {})
    assert redundant == {0: 1, 3: 2, 4: 13}
    assert duplicates.describe(redundant[0]) == "near duplicate of the training image train/1.png"
    assert duplicates.describe(redundant[4]) == "near duplicate of the test image test/1.png"


def test_the_table_names_both_images_of_each_pair() -> None:
    duplicates = _duplicates([(1, 14), (0, 2), (0, 3)])
    rows = duplicates_table(duplicates).to_pylist()
    named = [(row["path"], row["label_name"], row["other_path"], row["other_label_name"]) for row in rows]
    assert named == [
        ("train/1.png", "dog", "test/2.png", "cat"),
        ("train/0.png", "cat", "train/2.png", "cat"),
        ("train/0.png", "cat", "train/3.png", "dog"),
    ]
    assert [(row["other_split"], row["sample_id"], row["other_sample_id"]) for row in rows] == [
        ("test", 1, 2),
        ("train", 0, 2),
        ("train", 0, 3),
    ]
    counts = duplicates_metrics(duplicates, n_dropped=2)
    assert (counts["n_pairs"], counts["n_test_with_training"], counts["n_training_with_test"]) == (3, 1, 1)
    assert (counts["n_training_pairs_same_label"], counts["n_training_pairs_other_label"]) == (1, 1)


def test_without_a_search_the_table_has_its_columns_and_no_rows() -> None:
    empty = duplicates_table(None)
    assert len(empty) == 0
    assert empty.schema == duplicates_table(_duplicates([])).schema
