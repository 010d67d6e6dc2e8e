from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.arms import arm_mask
from pipeline.artifacts.overrides import Override
from pipeline.figures.palette import DROPPED, NOISE
from pipeline.figures.style import MAX_NAMES, Groups, Scale
from tests.fixtures.view import points_of
from viz.color_by import COLORINGS, ColorData, colors_by
from viz.components import NAMES, differences
from viz.filter_settings import FilterPreview

_PAST = {"keep": "kept", "drop": "dropped", "relabel": "relabeled"}
_SEEDS = st.integers(0, 2**16)


def _color_data(n: int, classes: int, seed: int, clusters: int = 3) -> ColorData:
    rng = np.random.default_rng(seed)
    values, thresholds = rng.random(n), np.full(n, 0.7)
    noise, decisions = (
        values > thresholds,
        rng.choice(["", "keep", "drop", "relabel"], n, p=[0.7, 0.1, 0.1, 0.1]).tolist(),
    )
    points = points_of(np.zeros((n, 2)), rng.integers(0, classes, n), n_classes=classes)
    overrides = {
        row: Override(
            path="", sha256="", decision=decision, label="x" * (decision == "relabel"), note="", timestamp="", line=0
        )
        for row, decision in enumerate(decisions)
        if decision
    }
    return ColorData(
        points=replace(
            points,
            predicted=rng.integers(0, classes, n),
            neighbors=rng.integers(0, n, (n, 4)),
            clusters=np.where(noise, -1, rng.integers(0, clusters, n)).astype(np.int32),
        ),
        preview=FilterPreview(values=values, thresholds=thresholds, noise=noise, overrides=overrides),
    )


def _names(color_data: ColorData, coloring: str) -> list[str]:
    colors = colors_by(coloring, color_data)
    assert isinstance(colors, Groups)
    return [colors.names[code] for code in colors.codes]


@given(n=st.integers(1, 50), classes=st.integers(1, 1000), seed=_SEEDS, coloring=st.sampled_from(sorted(COLORINGS)))
def test_codes_agree_with_names_and_colors(n: int, classes: int, seed: int, coloring: str) -> None:
    colors = colors_by(coloring, _color_data(n, classes, seed))
    if isinstance(colors, Scale):
        assert colors.values.shape == (n,)
        assert (colors.values >= 0).all()
        assert (colors.values <= 1).all()
        return
    assert colors.codes.shape == (n,)
    assert len(colors.names) == len(colors.colors)
    assert len(set(colors.names)) == len(colors.names)
    assert 0 <= colors.codes.min() <= colors.codes.max() < len(colors.names)


@given(n=st.integers(1, 50), seed=_SEEDS)
def test_decisions_classes_and_correctness_are_named(n: int, seed: int) -> None:
    color_data = _color_data(n, 4, seed)
    expected = [
        "relabeled by hand"
        if (line := color_data.preview.overrides.get(row)) and line.decision == "relabel"
        else f"{'kept' if keep else 'dropped'}{' by hand' if line else ''}"
        for row, keep in enumerate(color_data.preview.keep)
    ]
    assert _names(color_data, "decision") == expected
    assert _names(color_data, "class") == [f"class {label}" for label in color_data.points.labels]
    points = color_data.points
    predicted = ["the label" if same else "another class" for same in points.predicted == points.labels]
    assert _names(color_data, "correct") == [f"network predicts {what}" for what in predicted]


@given(n=st.integers(1, 50), seed=_SEEDS)
def test_reasons_name_what_contradicts_the_label(n: int, seed: int) -> None:
    color_data = _color_data(n, 3, seed)
    for row, name in enumerate(_names(color_data, "reason")):
        points = color_data.points
        if (override := color_data.preview.overrides.get(row)) is not None:
            assert name == f"{_PAST[override.decision]} by hand"
        elif not color_data.preview.noise[row]:
            assert name == "kept"
        else:
            contradictions = (
                points.predicted[row] != points.labels[row],
                color_data.voted[row] != points.labels[row],
            )
            assert ("network" in name, "neighbors" in name) == contradictions, name


@given(n=st.integers(1, 80), seed=_SEEDS)
def test_arms_are_those_of_training(n: int, seed: int) -> None:
    color_data = _color_data(n, 3, seed)
    keep = color_data.preview.keep
    random = arm_mask("random", color_data.points.labels, keep, seed=0)
    names = {
        (False, False): "full only",
        (True, False): "full and filtered",
        (False, True): "full and random (seed 0)",
    }
    expected = [names.get((bool(a), bool(b)), "full, filtered and random") for a, b in zip(keep, random, strict=True)]
    assert _names(color_data, "arm") == expected


@given(n=st.integers(1, 120), classes=st.integers(1, 5), clusters=st.integers(1, 20), seed=_SEEDS)
def test_clusters_are_named_the_largest_apart(n: int, classes: int, clusters: int, seed: int) -> None:
    color_data = _color_data(n, classes, seed, clusters)
    names = _names(color_data, "cluster")
    full = [
        "noise" if cluster < 0 else f"class {label}, cluster {cluster}"
        for label, cluster in zip(color_data.points.labels, color_data.points.clusters, strict=True)
    ]
    assert len(set(names)) <= MAX_NAMES
    sizes = Counter(name for name in full if name != "noise")
    smaller = {whole for name, whole in zip(names, full, strict=True) if name == "smaller clusters"}
    for name, whole in zip(names, full, strict=True):
        assert name in (whole, "smaller clusters")
    if smaller:
        assert len(sizes) > MAX_NAMES - 2
        assert max(sizes[name] for name in smaller) <= min(
            sizes[name] for name in set(names) - smaller & set(sizes) if name in sizes
        )


def test_noise_is_gray_and_dropped_images_are_not() -> None:
    color_data = _color_data(60, 2, 0)
    clusters, reasons = colors_by("cluster", color_data), colors_by("reason", color_data)
    assert isinstance(clusters, Groups)
    assert isinstance(reasons, Groups)
    assert clusters.colors[clusters.names.index("noise")] == NOISE
    assert NOISE not in [color for name, color in zip(reasons.names, reasons.colors, strict=True) if "dropped" in name]


def test_neighbors_vote_only_where_a_coloring_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("viz.color_by.neighbor_vote", fail)
    for coloring in set(COLORINGS) - {"reason"}:
        colors_by(coloring, _color_data(20, 3, 0))
    # The coloring by reason needs the vote, so this test can fail.
    with pytest.raises(AssertionError):
        colors_by("reason", _color_data(20, 3, 0))


def test_differences_name_who_drops() -> None:
    def preview(noise: list[bool], kept: list[int]) -> FilterPreview:
        line = Override(path="", sha256="", decision="keep", note="", timestamp="", line=0)
        return FilterPreview(
            values=np.zeros(5), thresholds=np.ones(5), noise=np.array(noise), overrides=dict.fromkeys(kept, line)
        )

    a = preview([False, True, False, True, True], [4])
    b = preview([False, False, True, True, True], [4])
    groups = differences(a, b)
    assert [NAMES[code] for code in groups.codes] == [
        "both keep", "only A drops", "only B drops", "both drop", "both keep",
    ]  # fmt: skip


def test_a_color_means_the_same_in_every_view() -> None:
    color_data = _color_data(60, 2, 0)
    views = [colors_by(name, color_data) for name in ("decision", "reason", "correct", "arm")]
    views.append(differences(color_data.preview, color_data.preview))
    meanings: dict[str, set[str]] = {}
    for view in views:
        assert isinstance(view, Groups)
        for name, color in zip(view.names, view.colors, strict=True):
            meanings.setdefault(color, set()).add({"both keep": "kept", "both drop": "dropped"}.get(name, name))
    # The third shade of the reasons is the color of all dropped images.
    meanings[DROPPED].remove("dropped: neighbors have another class")
    assert meanings[DROPPED] == {"dropped"}
    assert all(len(names) == 1 for names in meanings.values()), meanings
