"""The line after each run of a study: how many have ended, and the time left."""

import pytest

from pipeline.training.study_progress import StudyProgress


@pytest.mark.parametrize(("seconds", "left"), [(0.01, "1 s"), (10.0, "50 s"), (40.0, "3 min"), (2000.0, "2.8 h")])
def test_the_time_left_follows_the_images(seconds: float, left: str) -> None:
    """A sixth of the images took `seconds`."""
    times = iter([7.0, 7.0 + seconds, 7.0 + 6 * seconds])
    progress = StudyProgress([20, 100], clock=times.__next__)
    assert progress.end_run() == f"1 of 2 runs, about {left} left"
    assert progress.end_run() == "2 of 2 runs"


def test_runs_without_images_divide_by_nothing() -> None:
    assert StudyProgress([0, 0]).end_run() == "1 of 2 runs"
