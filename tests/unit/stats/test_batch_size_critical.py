"""The critical batch size of each arm at each setting."""

from dataclasses import replace

from pipeline.stats.batch_size import critical_batches
from pipeline.stats.runs import Run
from tests.fixtures.runs import made_run


def _measured(run: Run, low: float, value: float | None, high: float | None) -> Run:
    return replace(run, critical_batch=value, critical_batch_low=low, critical_batch_high=high)


def test_median_and_ends_are_of_finished_runs_with_an_interval() -> None:
    runs = [
        _measured(made_run("full", 0, 0.9), 100, 200, 400),
        _measured(made_run("full", 1, 0.9), 50, 300, 500),
        _measured(made_run("full", 2, 0.9), 80, 250, 350),
        _measured(made_run("full", 3, None), 1, 2, 3),  # diverged
        made_run("full", 4, 0.9),  # not sampled
        made_run("random", 0, 0.9),
        _measured(made_run("random", 1, None), 1, 2, 3),
    ]
    (row,) = critical_batches(runs)
    assert (row.arm, row.median, row.low, row.high, row.n, row.planned) == ("full", 250, 50, 500, 3, 5)


def test_a_run_without_an_upper_end_is_larger_than_any_other() -> None:
    runs = [
        _measured(made_run("full", 0, 0.9), 100, 200, 400),
        _measured(made_run("full", 1, 0.9), 150, None, None),
        _measured(made_run("full", 2, 0.9), 90, 300, 600),
    ]
    (row,) = critical_batches(runs)
    assert (row.median, row.low, row.high) == (300, 90, None)
    (row,) = critical_batches(runs[1:2])
    assert (row.median, row.low, row.high) == (None, 150, None)


def test_rows_follow_the_settings_then_the_arms_of_the_runs() -> None:
    runs = [
        _measured(made_run(arm, 0, 0.9, batch_size), 1, 2, 3) for batch_size in (64, 32) for arm in ("random", "full")
    ]
    rows = [(row.setting.batch_size, row.arm) for row in critical_batches(runs)]
    assert rows == [(32, "random"), (32, "full"), (64, "random"), (64, "full")]
