"""A line of a study has the same style in all figures."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.figures.study_curves import accuracy_curves, difference_curves, learning_panels, run_curves, study_styles
from pipeline.figures.style import LineKey, LineStyle
from pipeline.reporting.landscape import slice_panels
from pipeline.stats.runs import Run
from pipeline.stats.study import study_summary
from tests.fixtures.runs import PLAN, made_run

DECAYS = (0.0005, 5e-5)
"""By number the second comes first, by its letters the first."""


def _runs(*arms: str, diverged: tuple[float, int] | None = None) -> list[Run]:
    """Two seeds of each arm, weight decay and batch size; those of one setting may have diverged."""
    runs = []
    for decay in DECAYS:
        for batch_size in (32, 64):
            for arm in arms:
                for seed in (0, 1):
                    run = made_run(arm, seed, None if (decay, batch_size) == diverged else 0.9, batch_size)
                    setting = run.setting._replace(weight_decay=decay)
                    runs.append(replace(run, setting=setting, history=((32, 2.0), (320, 1.0))))
    return runs


def _slices(runs: list[Run], *, kept: slice = slice(None)) -> dict[LineKey, LineStyle]:
    """Of those networks of which weights were kept."""
    rows: list[dict[str, Any]] = [{**run.setting._asdict(), "arm": run.arm} for run in runs]
    measured = [{**row, "split": "test", "distances": [0.0, 1.0], "slices": [[1.0, 2.0]]} for row in rows[kept]]
    return {curve.key: curve.style for curves in slice_panels(measured, rows).values() for curve in curves}


@pytest.mark.parametrize("arms", [("filtered",), ("full", "filtered", "random")])
def test_every_figure_gives_a_line_the_look_of_its_study(arms: tuple[str, ...]) -> None:
    runs = _runs(*arms, diverged=(5e-5, 32))
    study = study_summary("made-up", runs, PLAN)
    styles = study_styles(study)
    assert len(set(styles.values())) == len(styles) == 2 * len(arms)
    drawn: list[tuple[LineKey, LineStyle]] = [(curve.key, curve.style) for curve in accuracy_curves(study)]
    drawn += [(curve.key, curve.style) for panel in learning_panels(study, "train_loss").values() for curve in panel]
    drawn += [(curve.key, curve.style) for size in (32, 64) for curve in run_curves(study, runs, size)]
    assert dict(drawn) == styles
    assert set(drawn) == set(styles.items())
    assert _slices(runs) == styles
    # Where the weights of one weight decay alone were kept, a line is still what it is elsewhere.
    assert _slices(runs, kept=slice(4 * len(arms))).items() < styles.items()


def test_variants_stand_in_the_order_of_their_numbers() -> None:
    study = study_summary("made-up", _runs("full", "filtered"), PLAN)
    styles = study_styles(study)
    assert [styles[LineKey("full", f"wd {decay}")].dash[0] for decay in sorted(DECAYS)] == ["solid", "dash"]
    (panel, _) = learning_panels(study, "train_loss").values()
    assert [curve.key.variant for curve in panel if curve.key.arm == "full"] == ["wd 5e-05", "wd 0.0005"]


def test_a_difference_has_its_controls_look_with_any_controls() -> None:
    for arms in (("filtered", "random"), ("filtered", "random", "full")):
        study = study_summary("made-up", _runs(*arms), PLAN)
        styles = study_styles(study)
        found = difference_curves(study)
        assert len(found) == 2 * (len(arms) - 1)
        assert all(curve.style == styles[curve.key] for curve in found)
        random = {curve.style.color for curve in found if curve.key.arm == "random"}
        assert random == {styles[LineKey("random", "wd 0.0005")].color}
        assert random != {styles[LineKey("filtered", "wd 0.0005")].color}


def test_no_interval_of_an_accuracy_leaves_0_to_100_percent() -> None:
    tops = {"full": (0.999, 0.97), "filtered": (0.02, 0.001)}
    runs = [made_run(arm, seed, top1) for arm, values in tops.items() for seed, top1 in enumerate(values)]
    study = study_summary("made-up", runs, PLAN)
    assert any(row["top1"]["high"] > 1 for row in study["accuracy"])
    full, filtered = accuracy_curves(study)
    assert [*full.high, *filtered.low] == [100.0, 0.0]
    assert full.values == pytest.approx([98.45])


def test_losses_stand_at_the_steps_of_runs_whose_batch_grew() -> None:
    steady = _runs("full")
    growing = [replace(run, history_steps=(4, 13)) for run in steady]
    for runs, expected in ((steady, (1, 10)), (growing, (4, 13))):
        lines = run_curves(study_summary("made-up", runs, PLAN), runs, 32)
        assert [[step for step, _ in line.mean] for line in lines] == [list(expected)] * len(lines)
        assert {tuple(step for step, _ in run.points) for line in lines for run in line.runs} == {expected}
