"""Where the runs of a study are: how many have ended, the time left, and what follows."""

import pytest

from pipeline.live.progress import StudyProgress, following_stages


@pytest.mark.parametrize(("seconds", "left"), [(0.01, "1 s"), (10.0, "50 s"), (40.0, "3 min"), (2000.0, "2.8 h")])
def test_the_time_left_follows_the_images(seconds: float, left: str) -> None:
    """A sixth of the images took `seconds`."""
    times = iter([7.0, 7.0 + seconds, 7.0 + 6 * seconds])
    progress = StudyProgress([20, 100], clock=times.__next__)
    assert progress.end_run() == f"1 of 2 runs, about {left} left"
    assert progress.end_run() == "2 of 2 runs"


def test_a_run_says_where_it_is_and_what_follows() -> None:
    now = [0.0]
    progress = StudyProgress([50, 50, 100], following=["train@second", "report"], clock=lambda: now[0])
    assert progress.begin_run() == "run 1 of 3, then train@second, report"
    now[0] = 120.0
    progress.end_run()
    assert progress.where == "run 1 of 3, about 6 min left, then train@second, report"
    assert progress.begin_run() == "run 2 of 3, about 6 min left, then train@second, report"
    now[0] = 240.0
    progress.end_run()
    progress.begin_run()
    progress.end_run()
    assert progress.where == "run 3 of 3, then train@second, report"
    alone = StudyProgress([1])
    assert alone.begin_run() == "run 1 of 1"


def test_under_dvc_the_later_studies_and_the_report_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_ROOT", "/project")
    studies = {"first": None, "second": None, "third": None}
    assert following_stages("first", studies) == ["train@second", "train@third", "report"]
    assert following_stages("third", studies) == ["report"]
    monkeypatch.delenv("DVC_ROOT")
    assert following_stages("first", studies) == []


def test_other_units_are_counted_by_their_names() -> None:
    progress = StudyProgress([1, 1], unit="network")
    assert progress.begin_run() == "network 1 of 2"
    assert progress.end_run().startswith("1 of 2 networks, about ")


def test_runs_without_images_have_no_time_left() -> None:
    assert StudyProgress([0, 0]).end_run() == "1 of 2 runs"
