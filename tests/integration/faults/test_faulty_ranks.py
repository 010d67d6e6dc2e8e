"""A fault on one rank of a real training: a clear end or an outcome that all ranks agree on, and no other run is lost.

The ranks run the stage as `python -m pipeline.stages.train` starts it, with the fault of tests/fixtures/faulty_rank.py.
"""

import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from pipeline.training.weights import save_trained
from tests.fixtures.forked import Process
from tests.fixtures.interrupted_study import STEPS, StudyProject
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.process_tree import alive, descendants
from tests.fixtures.projects import NETWORK
from tests.fixtures.training import (
    NAMES,
    TINY,
    arguments,
    build_resnet,
    command,
    kill,
    run,
    start,
    wait_until,
    write_project,
)

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.timeout(900)]

_LAUNCH = "import sys; from pipeline.distributed import launch; sys.exit(launch(sys.argv[1], sys.argv[2:], 2))"
_MODULE = "tests.fixtures.faulty_rank"
_STUDY: dict[str, Any] = {"seeds": [0, 1], "arms": ["full"]}
_EXCHANGES: dict[str, dict[str, Any]] = {
    "post_local_sgd": {"post_local_sgd": {"start": {"steps": 4}, "period": 2}},
    "powersgd": {"communication": {"compression": "powersgd", "powersgd_rank": 2, "overlap": False}},
}
_NO_RANK = 9
_LONG: dict[str, Any] = {"seeds": [0], "budget": {"steps": 4000}}
# torchrun ends a stopped process after half a minute.
_ENDS_WITHIN_S = 90


def _faulty(study: StudyProject, fault: str, *, rank: int, step: int = 7, stage: str = "train") -> list[str]:
    """Return the command that runs a stage on two ranks, one of which has a fault in a step."""
    options = [stage, fault, str(rank), str(step), *arguments(stage, study.folder)]
    return [sys.executable, "-c", _LAUNCH, _MODULE, *options]


def _with_fault(study: StudyProject, fault: str, **where: Any) -> tuple[int, str]:
    """Run the command of `_faulty`; return the exit code and standard error."""
    done = run(_faulty(study, fault, **where), timeout=300)
    study.check_no_orphans()
    return done.returncode, done.stderr


def _lines(said: str) -> list[str]:
    """Return the lines but those that torch and its C++ libraries log."""
    return [line for line in said.splitlines() if line and not re.match(r"\[?[WEI]\d{4}|\[[WE]|\[rank", line)]


@pytest.mark.parametrize(
    ("reduction", "fault", "rank"),
    [
        ("ddp", "gradient", 1), ("ddp", "image", 0), ("ddp", "weight", 1),
        ("exact", "gradient", 0), ("exact", "image", 1), ("exact", "weight", 0),
    ],
)  # fmt: skip
def test_nan_on_one_rank_ends_its_run_on_all(tmp_path: Path, reduction: str, fault: str, rank: int) -> None:
    """Every run gets the fault in its step 7; the first record with a loss that is not finite ends it."""
    study = StudyProject.write(tmp_path / "study", study=_STUDY, reduction=reduction)
    code, said = _with_fault(study, fault, rank=rank)
    assert code == 0, said
    assert "Traceback" not in said
    # A gradient spoils the next loss of both ranks.
    where = f"step 7 on, first on rank {rank} of 2" if fault != "gradient" else "step 8 on, on all 2 ranks at once"
    assert re.findall(r": the loss is not finite from (.*)", said) == [where] * 2
    outcome = study.outcome()
    assert [(row["status"], row["top1"]) for row in outcome["runs"]] == [("diverged", None)] * 2
    assert not study.checkpoints()


@pytest.mark.parametrize(
    ("fault", "step", "rank"), [("gradient", 7, 0), ("image", 7, 1), ("weight", 8, 1), ("gradient", STEPS, 1)]
)
@pytest.mark.parametrize("exchange", _EXCHANGES)
def test_nan_ends_a_run_with_another_exchange(tmp_path: Path, exchange: str, fault: str, step: int, rank: int) -> None:
    """Ranks with separate weights or residuals agree too. After the last step, only the evaluation shows it."""
    keys = {"simulated_workers": 2, "workers": 2, **_EXCHANGES[exchange]}
    study = StudyProject.write(tmp_path / "study", study=_STUDY, **keys)
    code, said = _with_fault(study, fault, rank=rank, step=step)
    assert code == 0, said
    assert "Traceback" not in said
    assert [(row["status"], row["top1"]) for row in study.outcome()["runs"]] == [("diverged", None)] * 2
    history = pyarrow.parquet.read_table(study.data.history("tiny")).to_pylist()
    # A gradient spoils the loss of the next step.
    ends = min(step + (fault == "gradient"), STEPS)
    last = [row for row in history if row["step"] == max(one["step"] for one in history)]
    assert [row["step"] for row in last] == [ends] * 2
    assert all((row["train_loss"] is None) == (step < STEPS) for row in last)
    assert not study.checkpoints()


@pytest.mark.parametrize("rank", [0, 1])
def test_nan_on_one_rank_ends_fine_tuning_in_one_line(tmp_path: Path, rank: int) -> None:
    keys = {"simulated_workers": 2, "workers": 2, "budget": {"steps": 12}}
    data = write_project(tmp_path, finetune=keys)
    code, said = _with_fault(StudyProject(tmp_path), "gradient", rank=rank, stage="finetune")
    assert code == 2, said
    (line,) = _lines(said)
    assert printed_error(line).key == "finetune.learning_rate"
    assert "makes the loss of resnet18 infinite from step 8 on, on all 2 ranks at once" in line
    assert not data.extractor(NETWORK).exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_nan_on_one_rank_ends_extraction_in_one_line(tmp_path: Path, rank: int) -> None:
    data = write_project(tmp_path)
    save_trained(data.extractor(NETWORK), build_resnet(), TINY, NAMES)
    code, said = _with_fault(StudyProject(tmp_path), "features", rank=rank, stage="extract")
    assert code == 2, said
    (line,) = (line for line in _lines(said) if "no provenance.json" not in line)
    assert printed_error(line).key == "features"
    assert not [path for path in data.features(NETWORK).parent.iterdir() if path.suffix != ".tmp"]


@pytest.mark.parametrize("fault", ["gradient", "image"])
def test_half_precision_skips_the_step_on_all_ranks(tmp_path: Path, fault: str) -> None:
    """The loss scaler sees the averaged gradient, which is equal on all ranks, so they agree to skip the step."""
    rows = []
    for name, rank in (("study", 1), ("undisturbed", _NO_RANK)):
        study = StudyProject.write(tmp_path / name, study={**_STUDY, "seeds": [0]}, precision="fp16")
        code, said = _with_fault(study, fault, rank=rank)
        assert code == 0, said
        rows += study.outcome()["runs"]
    # A poisoned image makes the loss of its record NaN too.
    assert [row["status"] for row in rows] == ["finished" if fault == "gradient" else "diverged", "finished"]
    if fault == "gradient":
        # The scale of the loss is too large for the first steps of any run.
        assert rows[0]["skipped_steps"] == rows[1]["skipped_steps"] + 1


def test_a_rank_out_of_memory_says_so_and_its_run_resumes(tmp_path: Path) -> None:
    undisturbed = StudyProject.write(tmp_path / "undisturbed", study=_STUDY, workers=2)
    undisturbed.finish()
    study = StudyProject.write(tmp_path / "study", study=_STUDY, workers=2)
    code, said = _with_fault(study, "memory", rank=1)
    assert code == 2, said
    errors = [line for line in _lines(said) if "rror" in line]
    assert len(errors) == 1, said
    assert "memory" in str(printed_error(errors[0]))
    assert "Traceback" not in said
    assert study.checkpoints()
    study.finish()
    study.assert_equals(undisturbed)


def _started(study: StudyProject, output: Path) -> tuple[Process, dict[int, int]]:
    """Start the stage, which starts two ranks, and return its process and rank -> process once it has trained."""
    process = start(command("train", study.folder), output=output)
    try:
        wait_until(lambda: study.checkpoints(), process)
        pids = _ranks_of(process)
        assert pids.keys() == {0, 1}
    except BaseException:
        kill(process)
        raise
    return process, pids


def _end(process: Process, pids: Mapping[int, int]) -> None:
    kill(process, *alive(set(pids.values())))


def _ranks_of(process: Process) -> dict[int, int]:
    """Return rank -> process of the ranks that a process has started, in the order of their numbers."""
    ranks = (pid for pid in descendants(process.pid) if not descendants(pid))
    return dict(enumerate(sorted(ranks)))


def test_a_stopped_rank_is_named_and_the_run_resumes(tmp_path: Path) -> None:
    """The first rank of one study and the last of another, which wait for torchrun at the same time."""
    with ExitStack() as stack:
        studies = [
            StudyProject.write(tmp_path / f"study-{victim}", study=_LONG, workers=2, timeout_seconds=10)
            for victim in (0, 1)
        ]
        ranks = []
        for victim, study in enumerate(studies):
            process, pids = _started(study, tmp_path / f"said-{victim}")
            stack.callback(_end, process, pids)
            os.kill(pids[victim], signal.SIGSTOP)
            ranks.append((process, pids[victim]))
        for process, _ in ranks:
            assert process.wait(timeout=_ENDS_WITHIN_S) == 2
    for victim, (study, (_, pid)) in enumerate(zip(studies, ranks, strict=True)):
        _check_named(_lines((tmp_path / f"said-{victim}").read_text()), victim, pid)
        _check_resumes(study, tmp_path / f"again-{victim}")


def _check_named(lines: list[str], victim: int, pid: int) -> None:
    assert not [line for line in lines if "Traceback" in line], lines
    name = re.escape(f"rank {victim} (process {pid} on ")
    (notice,) = (line for line in lines if "the others wait until" in line)
    assert re.match(rf"{name}\S+\) is stopped: it has not answered for \d+ s; the others wait until 10 s", notice)
    (error,) = (line for line in lines if line.startswith("error: "))
    assert re.match(rf"error: {name}\S+\) is stopped", error)
    assert error.endswith("run the same command again, which resumes at the last checkpoint")


def _check_resumes(study: StudyProject, again: Path) -> None:
    saved = study.checkpoints()
    assert saved
    process = start(command("train", study.folder), output=again)
    try:
        wait_until(lambda: "resumed from step" in again.read_text(), process)
    finally:
        kill(process)
        study.check_no_orphans()
    assert f"resumed from step {saved[-1]}, workers: 2" in again.read_text()


def test_a_rank_that_hangs_in_a_step_is_named(tmp_path: Path) -> None:
    """It answers, and keeps the others waiting for its gradient; over gloo the exchange ends with an error there.

    Two studies, with both kinds of sums, wait for torchrun at the same time.
    """
    keys: dict[str, Any] = {"study": {"seeds": [0]}, "workers": 2, "timeout_seconds": 6}
    studies = [StudyProject.write(tmp_path / name, **keys, reduction=name) for name in ("ddp", "exact")]
    processes = [start(_faulty(study, "sleep", rank=1)) for study in studies]
    try:
        ends = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            kill(process)
    for study, process, said in zip(studies, processes, ends, strict=True):
        study.check_no_orphans()
        assert process.returncode == 2, said
        notice, error = (line for line in _lines(said) if "rank" in line)
        late = r"rank 1 \(process \d+ on \S+\) has not reached the others"
        assert re.match(rf"{late} for \d+ s; the others wait until 6 s \(timeout_seconds\)", notice), said
        assert re.match(rf"error: {late} within 6 s; run the same command again", error), said
        assert "Traceback" not in said


def test_a_rank_is_named_after_half_a_minute_and_may_go_on(tmp_path: Path) -> None:
    """A rank that does not answer at all has a minute: the run ends as if nothing had been."""
    keys: dict[str, Any] = {"workers": 2, "checkpoint": {"steps": 20}}
    keys["study"] = {**_LONG, "budget": {"steps": 100}, "arms": ["full"]}
    undisturbed = StudyProject.write(tmp_path / "undisturbed", **keys)
    undisturbed.finish()
    study = StudyProject.write(tmp_path / "study", **keys)
    said = tmp_path / "said"
    process, pids = _started(study, said)
    try:
        os.kill(pids[1], signal.SIGSTOP)
        wait_until(lambda: "the others wait until" in said.read_text(), process)
        os.kill(pids[1], signal.SIGCONT)
        assert process.wait(timeout=300) == 0, said.read_text()
    finally:
        kill(process, *alive(set(pids.values())))
    (notice,) = (line for line in _lines(said.read_text()) if "the others wait until" in line)
    found = re.match(r"rank 1 \(process \d+ on \S+\) is stopped: it has not answered for (\d+) s;", notice)
    assert found, notice
    # It looks once a second.
    assert 30 <= int(found[1]) <= 40
    assert notice.endswith("the others wait until 60 s")
    study.assert_equals(undisturbed)
