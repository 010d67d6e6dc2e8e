"""A study with interim looks that is killed between them ends in the bytes of an undisturbed study."""

import signal
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.plans import read_registered_plans, read_run_dates
from pipeline.artifacts.runs import read_runs
from pipeline.stats.comparisons import AnalysisPlan, comparisons
from pipeline.stats.runs import run_from_row
from tests.fixtures.interrupted_study import StudyProject
from tests.fixtures.training import kill, runs_of, wait_until, write_project

pytestmark = pytest.mark.slow

_LOOKS, N_TEST = (3, 5), 22
_STUDY: dict[str, Any] = {
    "models": ["small_cnn"],
    "arms": ["filtered", "random"],
    "batch_sizes": [24],
    "seeds": [0, 1, 2, 3, 4],
    "looks": [*_LOOKS],
    "budget": {"steps": 12},
}


def _write(folder: Path, margin: float) -> StudyProject:
    folder.mkdir()
    write_project(
        folder,
        study=_STUDY,
        train={"checkpoint": {"steps": 2}, "simulated_workers": 4},
        report={"margin": margin, "primary": "random"},
    )
    return StudyProject(folder)


def _kill_after(study: StudyProject, n_runs: int) -> None:
    """Kill with SIGKILL once `n_runs` are in the ledger and the next one has saved a checkpoint."""
    process = study.start()
    try:
        wait_until(lambda: len(study.finished_runs()) >= n_runs and study.checkpoints(), process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=30) == -signal.SIGKILL
    finally:
        kill(process)
    assert len(study.finished_runs()) < 2 * len(_STUDY["seeds"])
    assert not study.data.runs("tiny").exists()
    study.check_no_orphans()


def _verdict(study: StudyProject, margin: float) -> list[str]:
    runs = [run_from_row(row) for row in read_runs(study.data.runs("tiny"), study.data.history("tiny"))]
    plan = AnalysisPlan(
        margin=margin / 100, alpha=0.05, primary="random", matched="steps", n_images=N_TEST, looks=_LOOKS
    )
    return [repr((comparison.pooled, comparison.by_setting)) for comparison in comparisons(runs, plan)]


def _files(study: StudyProject) -> list[bytes]:
    paths = study.data
    return [file("tiny").read_bytes() for file in (paths.runs, paths.history, paths.correct, paths.train_metrics)]


@pytest.mark.parametrize(
    ("margin", "kills", "seeds"),
    [
        pytest.param(0.001, (6, 8), 5, id="between the looks of a study that continues"),
        pytest.param(99.0, (4,), 3, id="before the look that decides"),
    ],
)
def test_the_same_seeds_verdict_and_bytes(tmp_path: Path, margin: float, kills: tuple[int, ...], seeds: int) -> None:
    undisturbed, study = _write(tmp_path / "undisturbed", margin), _write(tmp_path / "study", margin)
    undisturbed.finish()
    for n_runs in kills:
        _kill_after(study, n_runs)
    (statement,) = read_registered_plans(study.work.plans("tiny"))
    study.finish()
    assert {row["seed"] for row in runs_of(study.data)} == set(range(seeds))
    assert len(study.finished_runs()) == 2 * seeds
    assert _verdict(study, margin) == _verdict(undisturbed, margin)
    assert _files(study) == _files(undisturbed)
    study.assert_equals(undisturbed)
    assert read_registered_plans(study.work.plans("tiny")) == [statement]


def test_kills_during_registration_leave_one_complete_plan(tmp_path: Path) -> None:
    study = _write(tmp_path / "study", 99.0)
    for operation in (0, 2, 4):
        killed = study.fault("SIGKILL", "self", "/plans/", operation)
        assert killed.returncode == -signal.SIGKILL
        assert not study.finished_runs()
        assert len(read_registered_plans(study.work.plans("tiny"))) <= 1
    study.finish()
    (statement,) = read_registered_plans(study.work.plans("tiny"))
    assert statement.date < min(date or "" for date in read_run_dates(study.work.plans("tiny")).values())
