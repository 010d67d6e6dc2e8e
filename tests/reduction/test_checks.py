"""What is refused before anything is computed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.reduction.checks import check_features, check_settings, largest_perplexity


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 9000])
def test_values_that_are_no_numbers(bad: float, row: int) -> None:
    features = np.random.default_rng(0).normal(size=(9001, 3)).astype(np.float32)
    check_features(features, "f.npy")
    features[row, 1] = bad
    with pytest.raises(InputError, match=rf"f\.npy: row {row} holds NaN or infinity.*learning_rate"):
        check_features(features, "f.npy")


def test_equal_rows() -> None:
    features = np.ones((9001, 3), dtype=np.float32)
    with pytest.raises(InputError, match=r"f\.npy: all 9001 rows are equal"):
        check_features(features, "f.npy")
    # One row differs, blocks before the last.
    features[1, -1] = 2
    check_features(features, "f.npy")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"n_components": 21}, r"reduce\.pca\.n_components: 21 .* at most 20, or null"),
        ({"perplexity": 13.1}, r"reduce\.tsne\.perplexity: 13\.1 is too large for 40 training images; .* at most 13$"),
        ({"neighbors": 39}, r"reduce\.neighbors: 39 .* at most 38"),
    ],
)
def test_settings_out_of_reach(keys: dict[str, float], message: str) -> None:
    within = {"n_components": 20, "perplexity": 13.0, "neighbors": 38}
    check_settings(40, 20, **within)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        check_settings(40, 20, **{**within, **keys})  # type: ignore[arg-type]


@given(n=st.integers(2, 10**7))
def test_the_largest_perplexity_leaves_one_point_out(n: int) -> None:
    # openTSNE searches int(3 x perplexity) of the N - 1 others.
    assert n - 2 <= int(3 * largest_perplexity(n)) <= n - 1
