"""A study that is killed or terminated at any moment and started again ends in the same bytes."""

import random
import re
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.fixtures.interrupted_study import INTERVAL, StudyProject, resumed_steps
from tests.fixtures.printed_errors import printed_error

BOTH_NETWORKS = {"models": ["small_cnn", "resnet18"], "seeds": [0], "budget": {"steps": 6}}

# Each test trains networks or launches a study.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> StudyProject:
    """An uninterrupted study with exact sums on one process: any number of processes has to give its results."""
    study = StudyProject.write(tmp_path_factory.mktemp("exact"), reduction="exact")
    assert resumed_steps(study.finish()) == []
    assert len(study.finished_runs()) == 3
    return study


def test_kills_inside_a_checkpoint_and_an_entry_of_the_ledger(exact: StudyProject, tmp_path: Path) -> None:
    """Three kills in one study, at seeded moments."""
    rng = random.Random(0)
    study = StudyProject.write(tmp_path / "study", reduction="exact")
    step = INTERVAL * rng.randint(2, 4)
    killed = study.fault("SIGKILL", "self", f"step-{step:09}", rng.randrange(3))
    assert killed.returncode == -signal.SIGKILL
    # A kill loses at most the interval in which it happens.
    assert study.checkpoints()[-1] in (step - INTERVAL, step)
    saved = study.checkpoints()[-1]
    killed = study.fault("SIGKILL", "self", "/cells/.", rng.randint(4, 12))
    assert killed.returncode == -signal.SIGKILL
    assert resumed_steps(killed.stdout + killed.stderr) == [saved]
    assert len(study.finished_runs()) <= 1
    assert study.kill_at_random(rng)
    study.finish()
    study.assert_equals(exact)


def test_sigterm_to_the_launching_stage_saves_and_is_resumable(exact: StudyProject, tmp_path: Path) -> None:
    study = StudyProject.write(tmp_path / "study", reduction="exact", workers=2)
    ended = study.fault("SIGTERM", "launcher", "step-000000006", 0)
    assert ended.returncode == 75
    _, line = ended.stderr.splitlines()  # after the plan of the study
    assert line.startswith("terminated: ")
    saved = study.checkpoints()[-1]
    assert saved >= 6
    assert resumed_steps(study.finish()) == [saved]
    study.assert_equals(exact)


@pytest.mark.parametrize("sent", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(
    ("part", "number", "finished"),
    [
        pytest.param("step-000000006", 0, 0, id="in training"),
        pytest.param("/.timing.json", 0, 1, id="after the last step"),  # while the run is recorded
    ],
)
def test_a_signal_to_one_process_loses_nothing(
    exact: StudyProject, tmp_path: Path, part: str, number: int, finished: int, sent: str
) -> None:
    study = StudyProject.write(tmp_path / "study", reduction="exact")
    ended = study.fault(sent, "self", part, number)
    assert ended.returncode == 75, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("terminated: ")
    assert len(study.finished_runs()) == finished
    saved = study.checkpoints()[-1:]
    # The process writes the checkpoint of this step and stops at the next one.
    assert saved == ([] if finished else [7])
    assert resumed_steps(study.finish()) == saved
    study.assert_equals(exact)


def test_three_processes_share_four_workers(exact: StudyProject, tmp_path: Path) -> None:
    study = StudyProject.write(tmp_path / "study", reduction="exact")
    study.finish(ranks=3)
    study.assert_equals(exact)
    assert set(pyarrow.parquet.read_table(study.data.runs("tiny"))["workers"].to_pylist()) == {3}


def test_of_three_processes_that_cannot_share_evenly_one_waits(tmp_path: Path) -> None:
    study = StudyProject.write(tmp_path / "study", study={"seeds": [0]})
    study.finish(ranks=3)
    assert set(pyarrow.parquet.read_table(study.data.runs("tiny"))["workers"].to_pylist()) == {2}


def test_three_processes_are_refused_where_two_are_requested(tmp_path: Path) -> None:
    study = StudyProject.write(tmp_path / "study", workers=2)
    refused = study.run(ranks=3)
    assert refused.returncode != 0  # torchrun's own status; the ranks' is below
    (line,) = (line for line in refused.stderr.splitlines() if line.startswith("error: "))
    assert printed_error(line).key == "torchrun"
    assert "exitcode  : 2 " in refused.stderr  # torchrun's own words
    assert not study.finished_runs()


def test_ten_kills_in_one_study(tmp_path: Path) -> None:
    """Each at a random moment of its own tenth of the time between two checkpoints and more."""
    longer = {"budget": {"steps": 60}, "seeds": [0, 1, 2]}
    undisturbed = StudyProject.write(tmp_path / "undisturbed", study=longer)
    undisturbed.finish()
    rng, study = random.Random(20), StudyProject.write(tmp_path / "study", study=longer)
    survivors: dict[str, int] = {}
    for number, tenth in enumerate(rng.sample(range(10), 10)):
        assert study.kill_at_random(rng, part=(tenth, 10)), f"finished after {number} kills"
        assert survivors.items() <= study.finished_runs().items(), "a finished run was trained again"
        survivors = study.finished_runs()
    study.finish()
    assert survivors.items() <= study.finished_runs().items()
    study.assert_equals(undisturbed)


@pytest.mark.parametrize(("reduction", "workers"), [("ddp", 2), ("exact", 3)])
def test_kills_of_a_rank_and_of_the_launcher(tmp_path: Path, reduction: str, workers: int) -> None:
    keys: dict[str, Any] = {"reduction": reduction, "workers": workers}
    undisturbed = StudyProject.write(tmp_path / "undisturbed", study=BOTH_NETWORKS, **keys)
    undisturbed.finish()
    rng, study = random.Random(workers), StudyProject.write(tmp_path / "study", study=BOTH_NETWORKS, **keys)
    assert study.kill_at_random(rng, of_a_rank=True)
    saved = study.checkpoints()[-1:]
    killed = study.fault("SIGKILL", "launcher", "/.step-", 0)
    assert killed.returncode == -signal.SIGKILL  # at the next checkpoint
    assert resumed_steps(killed.stdout + killed.stderr) == saved
    study.finish()
    study.assert_equals(undisturbed)


def test_exact_sums_resume_with_other_numbers_of_processes(tmp_path: Path) -> None:
    longer = {**BOTH_NETWORKS, "budget": {"steps": 16}}
    undisturbed = StudyProject.write(tmp_path / "undisturbed", study=longer, reduction="exact")
    undisturbed.finish()
    rng, study = random.Random(4), StudyProject.write(tmp_path / "study", study=longer, reduction="exact")
    for ranks in (4, 3, 1):
        assert study.kill_at_random(rng, ranks=ranks)
    study.finish(ranks=2)
    study.assert_equals(undisturbed)
    hardware = pyarrow.parquet.read_table(study.data.runs("tiny"))["trained_on"].to_pylist()
    assert any(len(set(re.findall(r"(\d+) processes", text))) > 1 for text in hardware), hardware


def test_a_divergence_on_two_ranks_ends_the_run_and_not_the_study(tmp_path: Path) -> None:
    rates = {"learning_rates": [1e30, 0.05], "seeds": [0]}
    study = StudyProject.write(tmp_path / "study", study=rates, workers=2)
    study.finish()
    rows = study.outcome()["runs"]
    assert [(row["learning_rate"], row["status"]) for row in rows] == [(1e30, "diverged"), (0.05, "finished")]
