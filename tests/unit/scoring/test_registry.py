"""What every registered scorer promises; a new one is tested by being listed."""

import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from pipeline.config.filter import ScorerConfig as ScorerConfig
from pipeline.scoring.base import Need, ScoredImages, ScorerInputs
from pipeline.scoring.decision import DropFraction, decide
from pipeline.scoring.registry import SCORERS, relative_ranks, split_options
from pipeline.scoring.thresholds import Allocation

_CHANCE = {"random", "grid"}
_N = 400


def _options(model: Any) -> dict[str, Any]:
    """A scorer's options with their defaults."""
    name = get_args(model.model_fields["name"].annotation)[0]
    members = {"scorers": ({"name": "self_confidence"}, {"name": "dbscan"})} if name == "ensemble" else {}
    options: dict[str, Any] = model.model_validate({"name": name, **members}).model_dump()
    return options


_EACH = [_options(model) for model in get_args(get_args(ScorerConfig)[0])]
_ALL = pytest.mark.parametrize("scorer", _EACH, ids=lambda scorer: scorer["name"])


def _planted(seed: int) -> tuple[ScorerInputs, np.ndarray]:
    """Two classes of two blobs each; 5 % of each class lie in the other's and are seen as such."""
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 1], _N // 2)
    planted = np.arange(_N) % 20 == 0
    seen = np.where(planted, 1 - labels, labels)
    centers = np.array([[[0, 0], [20, 0]], [[0, 20], [20, 20]]], dtype=float)
    places = centers[seen, rng.integers(0, 2, size=_N)] + rng.normal(size=(_N, 2))
    search = NearestNeighbors(n_neighbors=26).fit(places)
    sure = rng.beta(8, 2, size=_N)
    probabilities = np.column_stack([np.where(seen == 0, sure, 1 - sure), np.where(seen == 1, sure, 1 - sure)])
    return ScorerInputs(
        labels=labels,
        embeddings=np.stack([places, places + rng.normal(size=(_N, 2))]).astype(np.float32),
        components=places.astype(np.float32),
        neighbors=search.kneighbors(places, return_distance=False)[:, 1:],
        probabilities=probabilities.astype(np.float32),
        training_confidence=probabilities[np.arange(_N), labels].astype(np.float32) / 2,
        training_margin=np.where(planted, -1, 2).astype(np.float32) + rng.normal(size=_N).astype(np.float32),
        training_forgetting=np.where(planted, np.inf, rng.integers(0, 3, size=_N)).astype(np.float32),
    ), planted


def test_parameters_and_registry_name_the_same() -> None:
    assert {scorer["name"] for scorer in _EACH} == set(SCORERS)


@pytest.mark.parametrize("scorer", [one for one in _EACH if one["name"] not in _CHANCE], ids=lambda one: one["name"])
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_images_in_another_class_are_found_far_above_chance(scorer: dict[str, Any], seed: int) -> None:
    evidence, planted = _planted(seed)
    name, options = split_options(scorer)
    values = SCORERS[name].values(evidence, **options)
    assert roc_auc_score(planted, relative_ranks(values)) > 0.85  # values may be infinite


@_ALL
def test_suspicion_is_not_negative_and_repeats(scorer: dict[str, Any]) -> None:
    evidence, _ = _planted(0)
    name, options = split_options(scorer)
    first, second = (SCORERS[name].values(evidence, **options) for _ in range(2))
    assert first.shape == evidence.labels.shape
    assert first.dtype == np.float64
    assert (first >= 0).all()
    assert first.tobytes() == second.tobytes()


@_ALL
def test_how_tasks_run_changes_no_bit(scorer: dict[str, Any]) -> None:
    def backwards(function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
        """As on workers: pickled, and in another order."""
        sent = [pickle.loads(pickle.dumps((function, task))) for task in reversed(list(tasks))]
        return [own(task) for own, task in sent][::-1]

    evidence, _ = _planted(0)
    elsewhere = ScorerInputs(**{**vars(evidence), "map_fn": backwards})
    name, options = split_options(scorer)
    values = [SCORERS[name].values(one, **options).tobytes() for one in (evidence, elsewhere)]
    assert values[0] == values[1]


@_ALL
def test_what_is_not_needed_may_be_missing(scorer: dict[str, Any]) -> None:
    evidence, _ = _planted(0)
    name, options = split_options(scorer)
    needs = set(SCORERS[name].needs_of(evidence)) | {options.get("space")}
    needs |= {"ensemble": {"embedding", "probabilities"}, "ccs": {"probabilities"}}.get(name, set())
    arrays = set(get_args(Need)) - {"classes"}
    missing = {{"embedding": "embeddings"}.get(need, need): None for need in arrays - needs}
    bare = ScorerInputs(**{**vars(evidence), **missing})
    assert SCORERS[name].values(bare, **options).tobytes() == SCORERS[name].values(evidence, **options).tobytes()


@_ALL
def test_with_folds_only_mean_confidence_reads_in_sample(scorer: dict[str, Any]) -> None:
    evidence, _ = _planted(0)
    name, options = split_options(scorer)
    assert evidence.training_confidence is not None
    in_sample = [evidence.training_confidence, np.sqrt(evidence.training_confidence)]
    evidence = replace(evidence, folds=(np.arange(_N) % 2).astype(np.int32))
    values = [
        SCORERS[name].values(replace(evidence, training_confidence=seen), **options).tobytes() for seen in in_sample
    ]
    assert (values[0] != values[1]) == (name == "mean_confidence")


_RULES = [
    0.4,
    *(DropFraction(fraction=share, allocation=quota) for share in (0.0, 0.1) for quota in get_args(Allocation)),
]


@_ALL
@pytest.mark.parametrize("rule", _RULES, ids=str)
def test_any_rule_follows_any_scorer(scorer: dict[str, Any], rule: DropFraction | float) -> None:
    evidence, _ = _planted(0)
    decision = decide(evidence, scorer, rule)
    assert ((decision.scores >= 0) & (decision.scores <= 1)).all()
    np.testing.assert_array_equal(decision.scores > 0.5, decision.is_noise)
    for label in (0, 1):
        rows = evidence.labels == label
        assert (np.diff(decision.scores[rows][np.argsort(decision.values[rows])]) >= 0).all()
    if isinstance(rule, DropFraction):
        off = abs(decision.is_noise.mean() - rule.fraction)
        assert off < 0.001 or decision.share_note is not None


@_ALL
def test_every_image_gets_a_phrase(scorer: dict[str, Any]) -> None:
    evidence, _ = _planted(0)
    name, options = split_options(scorer)
    values = SCORERS[name].values(evidence, **options)
    thresholds = np.full(_N, np.median(values) + 1e-3)
    scored = ScoredImages(
        inputs=evidence, options=options, values=values, thresholds=thresholds, class_names=["cat", "dog"]
    )
    phrases = SCORERS[name].reasons(scored)
    assert len(phrases) == _N
    assert all(phrase and "nan" not in phrase for phrase in phrases)


@_ALL
def test_an_image_reads_differently_dropped_and_kept(scorer: dict[str, Any]) -> None:
    evidence, _ = _planted(0)
    name, options = split_options(scorer)
    values = SCORERS[name].values(evidence, **options)
    dropped, kept = (
        SCORERS[name].reasons(
            ScoredImages(
                inputs=evidence,
                options=options,
                values=values + 1e-6,
                thresholds=values + 1e-6 + change,
                class_names=["cat", "dog"],
            )
        )
        for change in (-5e-7, 5e-7)
    )
    # An infinite value is below no threshold, and above an infinite one it is not.
    texts = [pair for *pair, value in zip(dropped, kept, values, strict=True) if np.isfinite(value)]
    assert texts
    assert all(left != right for left, right in texts)


@pytest.mark.parametrize(
    ("odds", "threshold", "phrase"),
    [
        (3.2, 2, "another class is 3.2 times as probable as its label cat"),
        (3.2, 4, "another class is only 3.2 times as probable as its label cat"),
        (0.71, 0.5, "its label cat is only 1.4 times as probable as another class"),
        (0.71, 0.9, "its label cat is 1.4 times as probable as another class"),
        (0.999, 0.5, "its label cat is only about as probable as another class"),
        (1234.5, 2, "another class is 1,234 times as probable as its label cat"),
        (0.0, 0.5, "its label cat is at least 10,000,000 times as probable as another class"),
        # The label has the probability 0, and the other class 0.97 or, of many classes, 0.002.
        (9.7e6, 2, "another class is at least 9,700,000 times as probable as its label cat"),
        (2e4, 2, "another class is at least 20,000 times as probable as its label cat"),
    ],
)
def test_odds_in_words(odds: float, threshold: float, phrase: str) -> None:
    scored = ScoredImages(
        inputs=ScorerInputs(labels=np.array([0])),
        options={},
        values=np.array([odds]),
        thresholds=np.array([threshold]),
        class_names=["cat", "dog"],
    )
    assert SCORERS["label_odds"].reasons(scored) == [phrase]


def _uniform(n: int, labels: np.ndarray) -> ScorerInputs:
    """All images alike, in place and in the network's eyes."""
    n_classes = int(labels.max()) + 1
    return ScorerInputs(
        labels=labels,
        embeddings=np.zeros((2, n, 2), dtype=np.float32),
        components=np.zeros((n, 3), dtype=np.float32),
        neighbors=np.stack([np.delete(np.arange(n), row)[:25] for row in range(n)]),
        probabilities=np.full((n, n_classes), 1 / n_classes, dtype=np.float32),
        training_confidence=np.full(n, 0.5, dtype=np.float32),
        training_margin=np.zeros(n, dtype=np.float32),
        training_forgetting=np.full(n, 1, dtype=np.float32),
    )


@_ALL
def test_equal_images_have_equal_scores(scorer: dict[str, Any]) -> None:
    name, options = split_options(scorer)
    values = SCORERS[name].values(_uniform(60, np.arange(60) % 2), **options)
    assert not np.isnan(values).any()
    # Neighbors' labels differ where nothing else does; ccs selects by chance among images that are alike.
    if name not in {*_CHANCE, "ccs", "knn_agreement"}:
        assert len(np.unique(values)) == 1


@pytest.mark.parametrize(
    "scorer", [one for one in _EACH if not SCORERS[one["name"]].min_per_class], ids=lambda one: one["name"]
)
def test_classes_of_one_image_are_no_trouble(scorer: dict[str, Any]) -> None:
    evidence, _ = _planted(0)
    labels = evidence.labels.copy()
    labels[0], labels[1] = 2, 3
    assert evidence.probabilities is not None
    probabilities = np.column_stack([evidence.probabilities, np.full((_N, 2), 0.01)]).astype(np.float32)
    few = ScorerInputs(**{**vars(evidence), "labels": labels, "probabilities": probabilities})
    name, options = split_options(scorer)
    values = SCORERS[name].values(few, **options)
    assert values.shape == (_N,)
    assert not np.isnan(values).any()
