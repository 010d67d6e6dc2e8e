"""A running study: the time left, its metrics in DVCLive's layout, and its page."""

import csv
import errno
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.artifacts.files import read_json
from pipeline.live import LiveMetrics, LiveState, StudyProgress, following_stages, live_page
from pipeline.training.state import HistoryRecord
from tests.fixtures.loop import train_bright
from tests.fixtures.training import TINY


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


def test_the_time_left_includes_the_time_of_earlier_processes() -> None:
    """A run that another process trained almost to its end says nothing of the time of the next."""
    times = iter([7.0, 8.0])
    progress = StudyProgress([20, 40], clock=times.__next__)
    assert progress.end_run(earlier_seconds=599.0) == "1 of 2 runs, about 20 min left"


def _fail(line: str) -> None:
    raise AssertionError(line)


def _record(step: int, loss: float | None, top1: float | None = None) -> HistoryRecord:
    return HistoryRecord(epoch=0.5, step=step, examples=8 * step, train_loss=loss, lr=0.1 / step, top1=top1)


def _curve(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "plots" / "metrics" / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_curves_are_of_the_current_run_and_one_is_of_all_runs(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    times = iter(range(10, 1000, 10))
    live = LiveMetrics(folder, study="digits", n_runs=3, log=_fail, clock=times.__next__)
    live.start_run("full, seed 0")
    history = [_record(1, 2.5), _record(2, None), _record(3, 1.25, top1=0.5)]
    live.record(history[:1])
    assert read_json(folder / "metrics.json")["train"]["loss"] == 2.5
    live.record(history)
    assert _curve(folder, "train/loss") == [{"step": "1", "loss": "2.5"}, {"step": "3", "loss": "1.25"}]
    assert _curve(folder, "test/top1") == [{"step": "3", "top1": "0.5"}]
    live.end_run(0.75, "1 of 3 runs, about 5 min left")
    live.start_run("full, seed 1")
    assert not (folder / "plots/metrics/train").exists()
    live.end_run(None, "2 of 3 runs, about 2 min left")
    live.end_run(0.25, "3 of 3 runs")
    assert _curve(folder, "runs/top1") == [{"step": "1", "top1": "0.75"}, {"step": "3", "top1": "0.25"}]
    metrics = read_json(folder / "metrics.json")
    assert (metrics["study"], metrics["runs_ended"], metrics["runs"], metrics["left"]) == (
        "digits",
        3,
        3,
        "3 of 3 runs",
    )
    assert metrics["test"] == {"top1": 0.25}


def test_records_close_together_are_written_at_once(tmp_path: Path) -> None:
    """The first of a run at once, others after a while, and the last with the end of the run."""
    now = 100.0
    live = LiveMetrics(tmp_path, study="digits", n_runs=2, log=_fail, clock=lambda: now)
    history = [_record(step, 1 / step) for step in range(1, 6)]
    steps = []
    for run, ends in (("seed 0", True), ("seed 1", False)):
        live.start_run(run)
        for n, after in ((1, 0.0), (2, 1.0), (3, 0.5), (4, 1.0), (5, 0.5)):
            now += after
            live.record(history[:n])
            steps.append(int(_curve(tmp_path, "train/loss")[-1]["step"]))
        if ends:
            live.end_run(0.5, "1 of 2 runs")
            assert len(_curve(tmp_path, "train/loss")) == 5
    assert steps == [1, 1, 1, 4, 4] * 2


def test_metrics_of_an_earlier_study_are_removed(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "old.tsv").touch()
    LiveMetrics(tmp_path / "live", study="digits", n_runs=1, log=_fail).start_run("full, seed 0")
    assert {path.name for path in (tmp_path / "live").iterdir()} == {"metrics.json", "report.html"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_runs_go_on_where_metrics_cannot_be_written(
    tmp_path: Path, number: int, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No result depends on them. The disk is full from one of the calls on, for the log file as well."""
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        raise OSError(number, os.strerror(number))

    def refused(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    live = LiveMetrics(tmp_path / "live", study="digits", n_runs=2, log=log)
    calls = [
        lambda: live.start_run("full, seed 0"),
        lambda: live.record([_record(1, 2.5)]),
        lambda: live.end_run(0.75, "1 of 2 runs"),
    ]
    for call in calls[:fails_at]:
        call()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refused)
        for call in calls[fails_at:]:
            call()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for call in calls:
        call()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (line,) = lines
    assert line.startswith(f"{tmp_path / 'live'}: ")
    assert os.strerror(number) in line


def test_the_page_refreshes_itself_until_the_last_run_has_ended(tmp_path: Path) -> None:
    live = LiveMetrics(tmp_path, study="digits", n_runs=2, log=_fail)
    pages = []

    def read() -> str:
        pages.append((tmp_path / "report.html").read_text(encoding="utf-8"))
        return pages[-1]

    live.start_run("full & <b>, seed 0")
    assert "Run 1 of 2: full &amp; &lt;b&gt;, seed 0" in read()
    live.record([_record(1, 2.5), _record(3, 1.25, top1=0.5)])
    assert "Training loss of this run (nats): 1.25" in read()
    assert "Top-1 of this run: 0.5" in pages[-1]
    live.end_run(0.75, "1 of 2 runs, about 5 min left")
    live.start_run("full, seed 1")
    assert "1 of 2 runs, about 5 min left" in read()
    # The curves of the run before are gone, that of the study stays.
    assert "of this run" not in pages[-1]
    assert "Top-1 of the runs that have ended: 0.75" in pages[-1]
    assert [page.count('http-equiv="refresh"') for page in pages] == [1, 1, 1]
    live.end_run(0.5, "2 of 2 runs")
    assert 'http-equiv="refresh"' not in read()
    # One file, without scripts.
    for page in pages:
        assert not [part for part in ("<script", "src=", "href=") if part in page]


def test_every_record_is_passed_on_and_no_bit_changes() -> None:
    seen: list[list[HistoryRecord]] = []
    watched = train_bright(TINY, on_record=lambda history: seen.append(list(history)))
    assert [len(history) for history in seen] == [1, 2]
    assert seen[-1] == watched.history
    assert watched.links == train_bright(TINY).links


def _state(curve: list[tuple[int, float]]) -> LiveState:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    return LiveState(study="digits", run="full", ended=0, runs=2, left="", curves={"loss": curve}, updated=now)


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(st.integers(0, 10**6), min_size=1, max_size=20, unique=True).map(sorted),
    low=st.floats(-1e6, 1e6),
    spread=st.floats(0, 1e6),
)
def test_every_point_is_inside(steps: list[int], low: float, spread: float) -> None:
    curve = [(step, low + spread * (number % 2)) for number, step in enumerate(steps)]
    page = live_page(_state(curve))
    (points,) = re.findall(r'polyline points="([^"]+)"', page)
    coordinates = [tuple(map(float, pair.split(","))) for pair in points.split()]
    assert len(coordinates) == len(curve)
    assert all(0 <= x <= 640 and 0 <= y <= 200 for x, y in coordinates)
    assert [x for x, _ in coordinates] == sorted(x for x, _ in coordinates)


@pytest.mark.parametrize("curve", [[], [(1, 0.5)]])
def test_a_run_without_records_has_no_curve(curve: list[tuple[int, float]]) -> None:
    assert live_page(_state(curve)).count("<svg") == len(curve)
