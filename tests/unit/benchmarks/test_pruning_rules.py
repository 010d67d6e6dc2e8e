"""benchmarks/pruning_rules.py: pruning rules on complete curves."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.pruning_rules import complete_curves, epochs_per_trial, replay_rules, rows_of
from pipeline.errors import InputError

CURVES = [[0.4, 0.4, 0.4], [0.25, 0.5, 0.6]]


def _curves(path: Path, curves: list[list[float]]) -> Path:
    lines = [
        f"{trial},{epoch},{accuracy},false"
        for trial, curve in enumerate(curves)
        for epoch, accuracy in enumerate(curve, start=1)
    ]
    path.write_text("\n".join(["trial,epoch,accuracy,afterwards", *lines]) + "\n")
    return path


def test_trials_that_did_not_reach_the_end_take_no_part(tmp_path: Path) -> None:
    path = _curves(tmp_path / "curves.csv", [[0.1, 0.2], [0.3], [0.4, 0.5]])
    assert complete_curves(path, 2).tolist() == [[0.1, 0.2], [0.4, 0.5]]
    with pytest.raises(InputError) as raised:
        complete_curves(path, 8)
    assert raised.value.key == str(path)


def test_how_far_trials_might_go_is_in_the_summary(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"epochs_allowed": 24, "trials": 3}')
    assert epochs_per_trial(tmp_path / "curves.csv") == 8


def test_a_late_bloomer_is_what_a_rule_loses(tmp_path: Path) -> None:
    """The second, 0.15 behind after an epoch, is 0.2 ahead at the end."""
    folder = tmp_path / "late"
    folder.mkdir()
    rows = {row["rule"]: row for row in rows_of(_curves(folder / "curves.csv", CURVES), 3)}
    assert (rows["10% absolute"]["epochs"], rows["10% absolute"]["below_best_points"]) == (2, 20.0)
    # With 0.2 of tolerance both stay, and the first is out when it has fallen behind, at the end.
    assert (rows["20% absolute"]["epochs"], rows["20% absolute"]["below_best_points"]) == (6, 0.0)
    assert rows["20% absolute"]["saved_%"] == 0


@pytest.mark.parametrize("trials", [1, 3, 10])
def test_no_rule_trains_more_than_all_epochs(trials: int) -> None:
    curves = np.random.default_rng(trials).uniform(size=(trials, 5)).cumsum(axis=1) / 5
    for outcome in replay_rules(curves).values():
        assert 0 < outcome.total_epochs <= curves.size
        assert outcome.winner is not None
