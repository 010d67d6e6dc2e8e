from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.figures.palette import ARMS
from pipeline.paths import DataPaths
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.overview import (
    NOT_COMPARED,
    EffectBar,
    StudyCard,
    arm_marks,
    dropped_sentence,
    on_one_axis,
    short_sentence,
    studies_by_dropped,
    study_card,
)
from pipeline.reporting.summary import build_summary
from tests.fixtures.report import N_TRAIN, params_with, write_artifacts

_DIFFERENCES = st.floats(-50, 50, allow_nan=False)


@given(st.tuples(_DIFFERENCES, _DIFFERENCES, _DIFFERENCES).map(sorted), st.floats(0.01, 5))
def test_all_that_is_drawn_lies_on_the_axis_in_order(values: list[float], margin: float) -> None:
    low, mean, high = values
    bar = EffectBar(mean=mean, low=low, high=high, margin=margin)
    drawn = sorted([low, mean, high, -margin, 0.0, margin])
    positions = [bar.position(value) for value in drawn]
    assert positions == sorted(positions)
    assert positions[0] > 0
    assert positions[-1] < 100
    assert bar.width(low, high) == pytest.approx(bar.position(high) - bar.position(low), abs=0.011)


def test_an_effect_without_an_interval_has_an_axis() -> None:
    bar = EffectBar(mean=3.0, low=None, high=None, margin=1.0)
    assert bar.position(-1.0) < bar.position(0.0) < bar.position(3.0) < 100


def _card(name: str, *, effect: EffectBar | None = None, dropped: str = "") -> StudyCard:
    return StudyCard(name=name, outcome="helps", sentence="", effect=effect, effect_text="", dropped=dropped)


def test_the_effects_of_rows_are_on_one_axis() -> None:
    small = EffectBar(mean=1.0, low=0.5, high=1.5, margin=0.3)
    large = EffectBar(mean=-30.0, low=None, high=None, margin=0.3)
    first, without, last = on_one_axis([_card("a", effect=small), _card("b"), _card("c", effect=large)])
    assert without.effect is None
    assert first.effect is not None
    assert last.effect is not None
    assert first.effect.position(0) == last.effect.position(0) != small.position(0)
    assert 0 < last.effect.position(-30) < first.effect.position(0.5) < first.effect.position(1.5) < 100


def test_a_filter_of_several_studies_is_described_once() -> None:
    cards = [
        _card("a", dropped="x drops 1."),
        _card("b"),
        _card("c", dropped="y drops 2."),
        _card("d", dropped="x drops 1."),
    ]
    assert studies_by_dropped(cards) == {"x drops 1.": ["a", "d"], "y drops 2.": ["c"]}


def _pooled(outcome: str, control: str, *, n: int = 6, unit: str = "seed", mean: float = 1.234) -> dict[str, Any]:
    return {
        "control": control,
        "primary": True,
        "verdict": {"outcome": outcome, "unit": unit},
        "estimate": {"n": n, "mean": mean, "sd": 1.0, "low": mean - 1, "high": mean + 1},
    }


@pytest.mark.parametrize(
    ("outcome", "control"),
    [*product(("helps", "hurts", "equivalent", "undecided"), ("full", "random", "random_uniform"))],
)
@pytest.mark.parametrize(("n_dropped", "n_relabeled"), [(72, 0), (0, 1234), (72, 1234), (0, 0)])
def test_a_verdict_has_at_most_twenty_words(outcome: str, control: str, n_dropped: int, n_relabeled: int) -> None:
    for n, unit in ((1, "seed"), (12, "seed"), (3, "draw")):
        row = _pooled(outcome, control, n=n, unit=unit)
        sentence = short_sentence(row, 0.5, n_dropped=n_dropped, n_relabeled=n_relabeled)
        assert len(sentence.split()) <= 20, sentence


def test_gain_and_loss_have_the_size_of_the_effect() -> None:
    def said(row: dict[str, Any]) -> str:
        return short_sentence(row, 0.5, n_dropped=72, n_relabeled=0)

    assert "gains 1.23 points" in said(_pooled("helps", "full"))
    assert "loses 2.50 points" in said(_pooled("hurts", "full", mean=-2.5))
    assert "within 0.5 points" in said(_pooled("equivalent", "random"))
    assert said(_pooled("undecided", "full", n=1)).startswith("1 seed does not show")


@pytest.mark.parametrize(
    ("n_dropped", "n_relabeled", "sentence"),
    [
        (72, 0, "6 seeds do not show whether dropping these images beats dropping as many at random."),
        (72, 20, "6 seeds do not show whether dropping and relabeling beats dropping as many at random."),
        (0, 20, "6 seeds do not show whether changing 20 labels by hand beats training with the labels as given."),
        (0, 1, "6 seeds do not show whether changing 1 label by hand beats training with the labels as given."),
        (0, 0, "The filter drops no image, so that both arms train on the same images."),
    ],
)
def test_a_verdict_names_what_was_changed(n_dropped: int, n_relabeled: int, sentence: str) -> None:
    row = _pooled("undecided", "random_uniform")
    assert short_sentence(row, 0.5, n_dropped=n_dropped, n_relabeled=n_relabeled) == sentence


@pytest.mark.parametrize(
    ("n_dropped", "n_relabeled", "change", "includes"),
    [(6, 0, "Dropping these ", False), (6, 20, "Dropping and relabeling ", True), (0, 20, "Changing 20 ", False)],
)
def test_the_card_counts_images_and_labels_of_the_runs(
    n_dropped: int, n_relabeled: int, change: str, includes: bool, tmp_path: Path
) -> None:
    def outcome(row: Mapping[str, Any]) -> Mapping[str, Any]:
        if row["arm"] != "filtered":
            return {"top1": 0.5, "balanced_accuracy": 0.5, "n_relabeled": 0}
        top1 = 0.95 - 0.025 * (row["seed"] % 2)
        counts = {"n_train": N_TRAIN - n_dropped, "n_relabeled": n_relabeled}
        return {"top1": top1, "balanced_accuracy": top1, **counts}

    params, data = params_with(["resnet18"], seeds=[*range(6)]), DataPaths(root=tmp_path)
    write_artifacts(data, params, outcome)
    summary = build_summary(load_report_inputs(params, data))
    card = study_card(summary["studies"][0], params.studies["digits"], summary["networks"], summary["planted"])
    assert card.sentence.startswith(change)
    assert ("The effect includes 20 labels changed by hand." in card.dropped) == includes


def test_of_planted_labels_the_card_counts_those_found() -> None:
    networks = [{"name": "resnet18", "n": 1000, "n_kept": 900, "kept_share": 0.9}]
    found = {"name": "resnet18", "n_found": 80, "by_chance": 9.6}
    config = params_with(["resnet18"]).studies["digits"]
    assert dropped_sentence(config, networks, []) == "resnet18 drops 100 of 1,000 images (10.0 %)."
    assert dropped_sentence(config, networks, [{"n": 96, "networks": [found]}]) == (
        "resnet18 drops 100 of 1,000 images (10.0 %). "
        "80 of the 96 wrong labels are among them; a random choice finds 9.6."
    )


def _study(*lines: tuple[str, str]) -> dict[str, Any]:
    return {"accuracy": [{"arm": arm, "variant": variant} for arm, variant in lines]}


def test_the_first_screen_names_each_arm_once() -> None:
    marks = arm_marks([_study(("full", ""), ("filtered", "")), _study(("filtered", "lr 0.1"), ("random", "lr 0.1"))])
    assert [(mark.arm, mark.color, mark.glyph) for mark in marks] == [
        ("full", ARMS["full"], "■"), ("filtered", ARMS["filtered"], "●"), ("random", ARMS["random"], "◆"),
    ]  # fmt: skip
    # Lines of one arm have the colors of its variants, which only the chart names.
    assert arm_marks([_study(("full", "lr 0.1"), ("full", "lr 0.2"))]) == []


@pytest.mark.parametrize("arms", [["full"], ["full", "filtered"], ["full", "filtered", "random"]])
def test_a_card_without_a_primary_comparison_says_so(arms: list[str], tmp_path: Path) -> None:
    params, data = params_with(["resnet18"], arms=arms, seeds=[0]), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    summary = build_summary(load_report_inputs(params, data))
    (study,) = summary["studies"]
    card = study_card(study, params.studies["digits"], summary["networks"], summary["planted"])
    assert (card.outcome == NOT_COMPARED) == ("random" not in arms)
    assert (card.effect is None) == ("random" not in arms)
    assert (card.dropped == "") == ("filtered" not in arms)
    assert card.sentence
