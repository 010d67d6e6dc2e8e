"""The report's section on planted wrong labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.paths import DataPaths
from pipeline.reporting.data_quality import detection, planted_headline, planted_sentences
from pipeline.reporting.figures import dropped_images, figure_files
from pipeline.reporting.inputs import ReportInputs, load_report_inputs
from pipeline.reporting.summary import build_summary
from tests.fixtures.golden import check_golden
from tests.fixtures.planted import say_planted
from tests.fixtures.report import CLASS_NAMES, default_outcome, params_with, write_artifacts

# The filter drops rows 74 to 79; labels are 0 to 3 in turn.
_TRUTH = {3: 0, 75: 1, 78: 1, 79: 2}


def _inputs(folder: Path, outcome: Any = default_outcome, **study: Any) -> ReportInputs:
    params, data = params_with(["resnet18"], seeds=[0, 1, 2, 3, 4, 5], **study), DataPaths(root=folder)
    write_artifacts(data, params, outcome)
    say_planted(data, _TRUTH)
    return load_report_inputs(params, data)


def test_found_are_the_wrong_labels_that_are_dropped(tmp_path: Path) -> None:
    (planted,) = build_summary(_inputs(tmp_path))["planted"]
    assert (planted["n"], planted["n_train"]) == (4, 80)
    (network,) = planted["networks"]
    assert (network["n_dropped"], network["n_found"]) == (6, 3)
    assert (network["recall"], network["precision"]) == (0.75, 0.5)


def test_chance_is_the_mean_of_random_choices_with_equal_classes(tmp_path: Path) -> None:
    inputs = _inputs(tmp_path)
    (network,), rng = inputs.networks, np.random.default_rng(0)
    assert inputs.true_labels is not None
    wrong = inputs.true_labels != network.labels
    counts = np.bincount(network.labels[~network.keep], minlength=4)
    of_class = [np.flatnonzero(network.labels == label) for label in range(4)]
    drawn = [
        sum(wrong[rng.choice(rows, n, replace=False)].sum() for rows, n in zip(of_class, counts, strict=True))
        for _ in range(4000)
    ]
    # The standard error is about 0.008.
    assert detection(network, wrong)["by_chance"] == pytest.approx(np.mean(drawn), abs=0.04)


def test_the_first_sentences_state_finds_chance_and_gain(tmp_path: Path) -> None:
    gain = {"full": 0.0, "random": 0.0, "filtered": 0.025}
    summary = build_summary(_inputs(tmp_path, lambda row: {"top1": 0.85 + gain[row["arm"]] + 0.025 * row["seed"] / 5}))
    (planted,) = summary["planted"]
    outcomes = {row["control"]: row["verdict"]["outcome"] for row in summary["studies"][0]["pooled"]}
    assert outcomes == {"random": "helps", "full": "helps"}
    noisy = {**planted, "kind": "symmetric"}
    none = {"name": "resnet18", "n_dropped": 0, "n_found": 0, "by_chance": 0.0, "recall": 0.0, "precision": None}
    lines = [
        planted_headline(planted),
        planted_headline(noisy),
        *map(str, planted_sentences(planted, summary["studies"])),
        *map(str, planted_sentences({"n": 4, "networks": [none]}, [])),
    ]
    check_golden("planted_sentences.txt", "\n".join(lines) + "\n")


def test_what_is_undecided_is_called_so(tmp_path: Path) -> None:
    summary = build_summary(_inputs(tmp_path, lambda row: {"top1": 0.8 + 0.025 * (hash_of(row) % 8)}))
    _, *gains = planted_sentences(summary["planted"][0], summary["studies"])
    assert len(gains) == 2
    assert {row["verdict"]["outcome"] for row in summary["studies"][0]["pooled"]} == {"undecided"}
    assert all("undecided" in gain.headline for gain in gains)


def hash_of(row: Any) -> int:
    """A number that differs between runs and is the same each time."""
    return int(np.random.default_rng([row["seed"], row["batch_size"], len(row["arm"])]).integers(0, 1000))


def test_the_gallery_has_label_prediction_and_truth_in_order(tmp_path: Path) -> None:
    inputs = _inputs(tmp_path)
    gallery = dropped_images(inputs.networks[0], inputs)
    assert [image.truth for image in gallery[:2]] == [CLASS_NAMES[2], CLASS_NAMES[1]]
    assert [image.label for image in gallery[:2]] == [CLASS_NAMES[3], CLASS_NAMES[2]]
    scores = [image.score for image in gallery]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.slow
def test_every_figure_of_planted_labels_says_so(tmp_path: Path) -> None:
    """The line below makes each figure other than without it."""
    inputs = _inputs(tmp_path)
    summary = build_summary(inputs)
    noted = dict(figure_files(inputs, summary))
    plain = dict(figure_files(inputs, {**summary, "planted": []}))
    assert noted.keys() == plain.keys()
    assert all(noted[name] != plain[name] for name in noted)


def test_without_planted_labels_there_is_nothing_to_say(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"]), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    inputs = load_report_inputs(params, data)
    summary = build_summary(inputs)
    assert summary["planted"] == []
    assert "wrong_labels_found" not in summary
    assert {image.truth for image in dropped_images(inputs.networks[0], inputs)} == {None}
