"""What is refused before anything is computed."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.reduction.checks import check_features, check_perplexity, check_settings, max_perplexity
from tests.fixtures.golden import check_golden, refusals


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e20])
@pytest.mark.parametrize("row", [0, 9000])
def test_values_that_are_no_numbers(bad: float, row: int) -> None:
    features = np.random.default_rng(0).normal(size=(9001, 3)).astype(np.float32)
    check_features(features, "f.npy")
    features[row, 1] = bad
    with pytest.raises(InputError) as refused:
        check_features(features, "f.npy")
    assert f"row {row}" in str(refused.value)
    assert refused.value.key == "f.npy"


def test_equal_rows() -> None:
    features = np.ones((9001, 3), dtype=np.float32)
    with pytest.raises(InputError) as refused:
        check_features(features, "f.npy")
    assert "9001" in str(refused.value)
    assert refused.value.key == "f.npy"
    # One row differs, blocks before the last.
    features[1, -1] = 2
    check_features(features, "f.npy")


def test_constant_features_duplicates_and_a_lone_row_are_accepted() -> None:
    features = np.ones((100, 5), dtype=np.float32)
    features[:40, 2] = 3  # 40 duplicates, 60 duplicates, four constant features
    check_features(features, "f.npy")


def test_settings_out_of_reach() -> None:
    check_settings(40, 20, n_components=20, neighbors=39)
    check_perplexity(40, 13.0, key="reduce.tsne.perplexity")
    cases = {
        "components": partial(check_settings, 40, 20, n_components=21, neighbors=39),
        "neighbors": partial(check_settings, 40, 20, n_components=20, neighbors=40),
        "perplexity": partial(check_perplexity, 40, 13.1, key="reduce.extra_embeddings[0].perplexity"),
    }
    check_golden("refused_reduce_settings.txt", refusals(cases))


@given(n=st.integers(2, 10**7))
def test_the_largest_perplexity_leaves_one_point_out(n: int) -> None:
    # openTSNE searches int(3 x perplexity) of the N - 1 others.
    assert n - 2 <= int(3 * max_perplexity(n)) <= n - 1


def test_features_whose_squares_vanish_are_refused() -> None:
    features = np.random.default_rng(0).normal(size=(100, 5)).astype(np.float32)
    with pytest.raises(InputError) as refused:
        check_features(features * np.float32(1e-25), "f.npy")
    assert refused.value.key == "f.npy"
    check_features(features * np.float32(1e-12), "f.npy")
