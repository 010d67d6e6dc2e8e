"""The verdict on the filtered arm at a smaller batch against the full arm."""

from dataclasses import replace

import pytest

from pipeline.stats.batch_size import equivalent_batch_table, equivalent_batch_values, equivalent_comparison
from pipeline.stats.comparisons import comparisons
from pipeline.stats.replicates import seed_differences
from pipeline.stats.runs import Run
from pipeline.stats.study import study_summary
from tests.fixtures.runs import PLAN, made_runs

_SEEDS = range(8)
_PLAN = replace(PLAN, primary="full", equivalent_sizes={64: 40, 128: 80})


def _grid() -> list[Run]:
    """Filtered is 2 points above full at the same batch."""
    return [
        run
        for size in (64, 128)
        for run in made_runs(
            {
                "full": [0.80 + 0.001 * seed for seed in _SEEDS],
                "filtered": [0.82 + 0.001 * seed for seed in _SEEDS],
                "random": [0.79 + 0.001 * seed for seed in _SEEDS],
            },
            size,
        )
    ]


def _smaller(points: float, size: int) -> list[Run]:
    """Filtered at a smaller batch is so many points above full."""
    noise = [0.0004 * (-1) ** seed for seed in _SEEDS]
    return made_runs({"filtered": [0.80 + points / 100 + 0.001 * seed + noise[seed] for seed in _SEEDS]}, size)


@pytest.mark.parametrize(("points", "outcome"), [(0.0, "equivalent"), (1.5, "helps"), (-1.5, "hurts")])
def test_it_pairs_each_seed_with_the_full_arm_at_the_larger_batch(points: float, outcome: str) -> None:
    values = equivalent_batch_values([*_grid(), *_smaller(points, 40), *_smaller(points, 80)], _PLAN)
    assert values is not None
    assert values["estimate"]["mean"] == pytest.approx(points)
    assert (values["estimate"]["n"], values["settings"], values["left_out"]) == (8, 2, 0)
    assert values["verdict"]["outcome"] == outcome
    assert not values["primary"]
    title = "filtered against full at a smaller batch (40 for 64, 80 for 128) and equal steps: "
    assert values["sentence"].startswith(f"{title}{outcome}")
    assert values["headline"] == f"{title}{outcome}"
    rows = equivalent_batch_table(values, 0.95, 0.5).rows
    assert [row[:3] for row in rows] == [("64", "40", outcome), ("128", "80", outcome)]


def test_sizes_may_disagree_and_a_size_without_runs_is_left_out() -> None:
    comparison = equivalent_comparison([*_grid(), *_smaller(1.5, 40), *_smaller(0, 80)], _PLAN)
    assert comparison is not None
    assert [verdict and verdict.outcome for verdict in comparison.by_setting] == ["helps", "equivalent"]
    values = equivalent_batch_values([*_grid(), *_smaller(1.5, 40)], _PLAN)
    assert values is not None
    assert (values["settings"], values["left_out"]) == (1, 1)
    nothing = equivalent_batch_values(_grid(), _PLAN)
    assert nothing is not None
    assert (nothing["verdict"], nothing["headline"].endswith("nothing to compare")) == (None, True)


def test_the_other_comparisons_do_not_see_the_smaller_batches() -> None:
    grid, extra = _grid(), [*_smaller(0, 40), *_smaller(0, 80)]
    plan = replace(PLAN, primary="full")
    for before, after in zip(comparisons(grid, plan), comparisons([*grid, *extra], _PLAN), strict=True):
        assert (after.pooled, after.left_out, after.settings) == (before.pooled, before.left_out, before.settings)
    table = {(run.setting, run.arm, run.seed): run.top1 for run in [*grid, *extra]}
    assert seed_differences(table, "full") == pytest.approx(0.02)
    assert seed_differences(table, "full").shape == (8, 2)


def test_looks_stop_it_with_the_primary_comparison() -> None:
    """The primary comparison decides at the first look, so that later seeds are not used here either."""
    runs = [*_grid(), *_smaller(0, 40), *_smaller(0, 80)]
    values = equivalent_batch_values(runs, replace(_PLAN, looks=(6, 8)))
    assert values is not None
    assert values["verdict"]["seeds"] == 6
    assert values["verdict"]["looks"]["unused"] == 2


def test_without_a_stated_test_there_is_none() -> None:
    assert equivalent_batch_values(_grid(), PLAN) is None
    assert study_summary("s", _grid(), PLAN)["equivalent_batch"] is None
