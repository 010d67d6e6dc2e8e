"""The map is openTSNE's own, its record is complete, and labels survive on it."""

import inspect
from typing import Any

import numpy as np
import openTSNE
import pytest
from openTSNE.affinity import PerplexityBasedNN

from pipeline.config.reduce import TsneConfig
from pipeline.errors import InputError
from pipeline.reduction.neighbors import exact_neighbors, knn_label_accuracy
from pipeline.reduction.tsne import TsneResult, fit_tsne
from tests.fixtures.projects import class_blobs

# Set by this program for every map, and of no effect on it.
_NOT_SETTINGS = {"n_components", "callbacks", "callbacks_every_iters", "verbose"}
_BRIEF = {"perplexity": 10.0, "early_exaggeration_iter": 20, "n_iter": 25, "n_jobs": 1}


def _settings(**keys: Any) -> dict[str, Any]:
    return TsneConfig.model_validate({**_BRIEF, **keys}).model_dump()


def _map(points: np.ndarray, **keys: Any) -> TsneResult:
    return fit_tsne(points, _settings(**keys), report=lambda done, error: None)


def _points(n: int = 150, dimensions: int = 6) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, dimensions)).astype(np.float32)


def test_the_section_has_every_parameter_of_opentsne() -> None:
    theirs = inspect.signature(openTSNE.TSNE).parameters
    assert set(TsneConfig.model_fields) == set(theirs) - _NOT_SETTINGS
    ours = TsneConfig()
    for name in set(TsneConfig.model_fields) - {"n_jobs", "random_state"}:
        assert getattr(ours, name) == theirs[name].default, name


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"neighbors": "annoy", "n_jobs": 2, "knn_kwargs": {"n_trees": 5}},
        {"initialization": "spectral", "negative_gradient_method": "fft", "min_num_intervals": 10},
        {"initialization": "random", "exaggeration": 2.0, "learning_rate": 50.0, "dof": 0.8, "metric": "cosine"},
    ],
)
def test_the_map_is_that_of_opentsne_to_the_bit(keys: dict[str, Any]) -> None:
    points = _points()
    reference = openTSNE.TSNE(**_settings(**keys)).fit(points)
    mapped = _map(points, **keys)
    assert mapped.coordinates.tobytes() == np.asarray(reference, dtype=np.float32).tobytes()
    assert mapped.kl_divergence == pytest.approx(reference.kl_divergence, rel=1e-9)


def test_a_single_feature_orders_the_map() -> None:
    points = np.sort(_points(150, 1), axis=0)
    mapped = _map(points).coordinates
    assert mapped.shape == (150, 2)
    neighbors = exact_neighbors(mapped, np.arange(150), 5)
    assert np.abs(neighbors - np.arange(150)[:, None]).mean() < 10  # 50 by chance


def test_repeats_are_equal_to_the_bit() -> None:
    # 1,200 points: the search is approximate from 1,000 on.
    first, second = (_map(_points(1200), n_jobs=2) for _ in range(2))
    assert first.coordinates.tobytes() == second.coordinates.tobytes()
    assert first.kl_divergence == second.kl_divergence


@pytest.mark.parametrize("keys", [{}, {"exaggeration": 3.0}, {"learning_rate": 20.0, "early_exaggeration": 4.0}])
def test_effective_values_make_the_same_map(keys: dict[str, Any]) -> None:
    points = _points()
    mapped = _map(points, **keys)
    used, given = mapped.effective, _settings(**keys)
    # The two phases of openTSNE.TSNE.fit, with nothing left for it to choose.
    affinities = PerplexityBasedNN(points, perplexity=used["perplexity"], method=used["neighbors"])
    tsne = openTSNE.TSNE(random_state=0, negative_gradient_method=used["negative_gradient_method"])
    embedding = tsne.prepare_initial(points, affinities)
    embedding.optimize(
        _BRIEF["early_exaggeration_iter"],
        exaggeration=used["early_exaggeration"],
        learning_rate=used["learning_rate"]["early"],
        inplace=True,
    )
    embedding.optimize(
        _BRIEF["n_iter"],
        exaggeration=given["exaggeration"],
        learning_rate=used["learning_rate"]["final"],
        inplace=True,
    )
    assert mapped.coordinates.tobytes() == np.asarray(embedding, dtype=np.float32).tobytes()


def test_progress_counts_every_reported_iteration_once() -> None:
    reports: list[tuple[int, float]] = []
    fit_tsne(_points(), _settings(), report=lambda *message: reports.append(message))
    # 20 and 25 iterations, reported by tens.
    assert [done for done, _ in reports] == [10, 10, 10, 10]
    assert all(0 < error < 10 for _, error in reports)


def test_labels_are_as_easy_to_tell_on_the_map_as_in_feature_space() -> None:
    points, labels = class_blobs(np.random.default_rng(0), n_classes=8, per_class=50, dimensions=20, spread=3.0)
    rows = np.arange(len(points))
    mapped = _map(points, perplexity=20.0, early_exaggeration_iter=100, n_iter=150)
    before, after = (
        knn_label_accuracy(exact_neighbors(space, rows, 15), rows, labels) for space in (points, mapped.coordinates)
    )
    assert before > 0.9
    assert after > before - 0.03


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"metric": "nonsense"}, "reduce.tsne.metric"),
        ({"metric": "precomputed"}, "reduce.tsne.metric"),
        ({"metric_params": {"p": 3.0}, "neighbors": "annoy"}, "reduce.tsne.metric_params"),
        ({"knn_kwargs": {"trees": 3}, "neighbors": "annoy"}, "reduce.tsne"),
        ({"knn_kwargs": {"algorithm": "no"}, "neighbors": "exact"}, "reduce.tsne"),
        ({"learning_rate": 1e300, "max_step_norm": None}, "reduce.tsne.learning_rate"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_settings_that_opentsne_refuses(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as refused:
        _map(_points(), **keys)
    assert refused.value.key == named
