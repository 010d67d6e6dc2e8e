import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.scoring import density
from pipeline.scoring.thresholds import score
from tests.fixtures.printed_errors import key_within
from tests.fixtures.projects import NETWORK
from tests.fixtures.view import decide, points_of, source_of
from viz.data import Points, Source
from viz.filter_settings import (
    AS_FILTERED,
    MAX_MIN_SAMPLES,
    SCORER_CHOICES,
    FilterSettings,
    Limit,
    class_thresholds,
    preview_filter,
    sorted_distances,
    suspicion_values,
    threshold_for,
)
from viz.state import make_map_state, settings_from_json, settings_to_json

_LIMITS = st.builds(Limit, threshold=st.none() | st.floats(1e-6, 1e6), min_samples=st.integers(1, MAX_MIN_SAMPLES))
SETTINGS = st.builds(
    FilterSettings,
    scorer_choice=st.sampled_from(sorted(SCORER_CHOICES)),
    limit=_LIMITS,
    per_class=st.dictionaries(st.integers(0, 3), _LIMITS),
)


def _by_sklearn(points: Points, limits: dict[int, Limit]) -> Any:
    noise = np.zeros(len(points), dtype=bool)
    for label in np.unique(points.labels):
        rows, limit = points.labels == label, limits[int(label)]
        assert limit.threshold is not None
        noise[rows] = density.cluster(points.coordinates[rows], limit.threshold, limit.min_samples) == -1
    return noise


@given(
    n=st.integers(1, 60),
    seed=st.integers(0, 2**16),
    limits=st.lists(st.builds(Limit, threshold=st.floats(0.01, 3), min_samples=st.integers(1, 9)), min_size=3),
    special=st.sets(st.integers(0, 2)),
)
def test_previewed_noise_is_dbscans_also_with_settings_by_class(
    n: int, seed: int, limits: list[Limit], special: set[int]
) -> None:
    rng = np.random.default_rng(seed)
    points = points_of(rng.normal(size=(n, 2)), rng.integers(0, 3, n), n_classes=3)
    settings = FilterSettings(
        scorer_choice="dbscan", limit=limits[0], per_class={label: limits[label] for label in special}
    )
    expected = _by_sklearn(points, {label: settings.limit_for(label) for label in range(3)})
    np.testing.assert_array_equal(preview_filter(source_of(points), points, settings).noise, expected)


def test_an_eps_equal_to_a_distance_includes_it(source: Source, points: Points) -> None:
    radii = suspicion_values(source, points, FilterSettings(scorer_choice="dbscan", limit=Limit(min_samples=2)))
    for row in range(len(points)):
        settings = FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=float(radii[row]), min_samples=2))
        assert not preview_filter(source, points, settings).noise[row]


_VALUES = arrays.arrays(np.float64, 30, elements=st.floats(0, 1e6) | st.just(np.inf))


@given(values=_VALUES, thresholds=st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=3))
def test_the_filters_decision_is_restored_with_or_without_a_limit(values: Any, thresholds: list[float]) -> None:
    labels = np.arange(30) % 3
    points = points_of(np.zeros((30, 2)), labels, values=values, thresholds=np.array(thresholds)[labels])
    source = source_of(points)
    untouched = preview_filter(source, points, FilterSettings())
    np.testing.assert_array_equal(untouched.noise, points.is_noise)
    np.testing.assert_array_equal(untouched.scores > 0.5, points.is_noise)
    # The same thresholds, with values that are recovered from scores.
    own = {label: Limit(threshold=threshold) for label, threshold in enumerate(thresholds)}
    np.testing.assert_array_equal(preview_filter(source, points, FilterSettings(per_class=own)).noise, points.is_noise)


@given(values=_VALUES)
def test_values_recovered_from_scores_are_those_of_the_scorer(values: Any) -> None:
    points = points_of(np.zeros((30, 2)), np.zeros(30, dtype=np.int64), values=values)
    recovered = suspicion_values(source_of(points), points, FilterSettings())
    # Above a million times the threshold, scores are too close to 1.
    np.testing.assert_allclose(recovered, values, rtol=1e-9)


@given(values=_VALUES, share=st.floats(0, 1))
def test_a_share_is_met_as_ties_allow(values: Any, share: float) -> None:
    reached = (values > threshold_for(values, share)).sum()
    distinct = np.unique(values)
    in_reach = {int((values > value).sum()) for value in distinct if np.isfinite(value)}
    in_reach.add(len(values) if (values > 0).all() else int((values > 0).sum()))
    # Adjacent values that no threshold can separate count as ties; see `scoring.thresholds`.
    assert abs(reached - share * 30) <= min(abs(count - share * 30) for count in in_reach) + _near_ties(distinct)


def _near_ties(distinct: Any) -> int:
    finite = distinct[np.isfinite(distinct)]
    return int((np.diff(finite) <= 1e-9 * finite[1:]).sum()) * 30


@given(
    settings=SETTINGS.filter(lambda settings: settings.scorer_choice in (AS_FILTERED, "dbscan")),
    rows=st.dictionaries(st.integers(0, 29), st.sampled_from(["keep", "drop"])),
)
def test_overrides_take_precedence_over_all_settings(settings: FilterSettings, rows: dict[int, str]) -> None:
    rng = np.random.default_rng(0)
    points = points_of(rng.normal(size=(30, 2)), np.arange(30) % 3, values=rng.random(30) * 2)
    preview = preview_filter(source_of(points, rows), points, settings)
    alone = preview_filter(source_of(points), points, settings)
    np.testing.assert_array_equal(preview.noise, alone.noise)
    for row in range(30):
        assert preview.keep[row] == (rows[row] == "keep" if row in rows else not alone.noise[row])


def test_overrides_in_the_file_count(data: DataPaths, source: Source, points: Points) -> None:
    for threshold, others in ((1e-6, False), (1e6, True)):
        decide(data, points, {0: "drop", 1: "keep"})
        keep = make_map_state(
            source, NETWORK, settings_to_json(FilterSettings(limit=Limit(threshold=threshold)))
        ).preview.keep
        assert (keep[0], keep[1]) == (False, True)
        # The first image has the value 0, which exceeds no threshold.
        assert (keep[2:] == others).all()
    decide(data, points, {})
    assert make_map_state(
        source, NETWORK, settings_to_json(FilterSettings(limit=Limit(threshold=1e6)))
    ).preview.keep.all()


@pytest.mark.parametrize("name", sorted(SCORER_CHOICES))
def test_every_scorer_gives_values_thresholds_and_a_curve(source: Source, points: Points, name: str) -> None:
    settings = FilterSettings(scorer_choice=name, limit=Limit(min_samples=3))
    if name in ("knn_agreement", "smoothed_confidence"):
        with pytest.raises(InputError) as refused:
            preview_filter(source, points, settings)
        assert refused.value.key.endswith(".k")
        return
    preview = preview_filter(source, points, settings)
    assert preview.values.shape == (80,)
    assert (preview.values >= 0).all()
    np.testing.assert_array_equal(preview.scores > 0.5, preview.noise)
    assert (class_thresholds(source, points, settings) > 0).all()
    for label in (None, 2):
        ordered = sorted_distances(source, points, settings, label)
        assert len(ordered) == (80 if label is None else 20)
        assert (np.diff(ordered) >= 0).all()


@given(settings=SETTINGS)
def test_settings_survive_json(settings: FilterSettings) -> None:
    assert settings_from_json(json.loads(json.dumps(settings_to_json(settings)))) == settings


@pytest.mark.parametrize(
    ("kept", "named"),
    [
        ({"scorer_choice": "nobody"}, "scorer_choice"),
        ({"limit": {"threshold": 0}}, "limit.threshold"),
        ({"limit": {"threshold": float("inf")}}, "limit.threshold"),
        ({"limit": {"threshold": float("nan")}}, "limit.threshold"),
        ({"limit": {"min_samples": 0}}, "limit.min_samples"),
        ({"per_class": {"a": {}}}, "per_class.a.[key]"),
    ],
)
def test_invalid_settings_name_the_field(kept: Any, named: str) -> None:
    with pytest.raises(InputError) as refused:
        settings_from_json(kept)
    assert key_within(refused.value, "the filter settings") == named


def test_settings_that_are_no_mapping_are_one_line() -> None:
    with pytest.raises(InputError) as raised:
        settings_from_json(7)  # type: ignore[arg-type]
    assert str(raised.value).startswith("the filter settings: Input should be ")


def test_limits_of_classes_without_images_do_nothing() -> None:
    points = points_of(np.random.default_rng(0).normal(size=(9, 2)), np.zeros(9, dtype=np.int64), n_classes=3)
    source = source_of(points)
    settings = FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=0.5))
    own = {label: Limit(threshold=0.1, min_samples=2) for label in (1, 2, 77, -1)}
    other = FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=0.5), per_class=own)
    np.testing.assert_array_equal(
        preview_filter(source, points, settings).noise, preview_filter(source, points, other).noise
    )


@pytest.mark.slow
def test_a_thousand_classes_are_previewed_at_once() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(4000) % 1000
    points = points_of(rng.normal(size=(4000, 2)), labels, values=rng.random(4000), thresholds=np.full(4000, 0.95))
    preview = preview_filter(
        source_of(points), points, FilterSettings(scorer_choice="dbscan", limit=Limit(min_samples=2))
    )
    # Without a threshold, the preview drops as many images as the filter.
    assert preview.noise.sum() == points.is_noise.sum()
    np.testing.assert_array_equal(preview.scores, score(preview.values, preview.thresholds))
