"""`verify --retrain`: the steps between which a training first differs from its record, and what is trained for it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch

from pipeline.__main__ import main
from pipeline.commands.verify import retraining
from pipeline.commands.verify.differences import differences, differing_part
from pipeline.commands.verify.studies import StudyRun
from pipeline.runs.checkpoints import kept_checkpoint, load_kept
from pipeline.runs.execution import execute_run
from pipeline.runs.ledger import RunResult
from pipeline.training.state import ChainLink, HistoryRecord
from pipeline.training.step import TrainStep
from tests.fixtures.forgeries import entries, make_up_chain, work_of
from tests.fixtures.verified import ONE_RUN, links_of_two_steps, write_verified_project
from tests.unit.runs.test_ledger import FINISHED

_RECORD = HistoryRecord(epoch=0.5, step=1, examples=20, train_loss=0.5, lr=0.05)


def _link(step: int, digit: str, *groups: str) -> ChainLink:
    """A link of which the first group is the sample order, then come `groups`, with the same digit."""
    names = ("sample order", *groups) if groups else ()
    return ChainLink(step=step, sha256=digit * 64, groups=tuple((name, digit * 16) for name in names))


def _result(*links: ChainLink, losses: tuple[float, ...] = ()) -> RunResult:
    history = tuple(replace(_RECORD, step=step, train_loss=loss) for step, loss in enumerate(losses, start=1))
    return replace(FINISHED, links=links, history=history)


def _groups(last: str, *digits: str) -> ChainLink:
    """A link at step 4 whose groups have these digits."""
    names = ("sample order", "model fc1", "optimizer fc1")
    return ChainLink(step=4, sha256=last * 64, groups=tuple(zip(names, (d * 16 for d in digits), strict=True)))


_TRUE = _result(_link(2, "a"), _groups("b", "1", "2", "3"), _link(6, "c"), losses=(0.5, 0.4, 0.3, 0.2, 0.1))


@pytest.mark.parametrize(
    ("recorded", "first"),
    [
        (
            replace(_TRUE, links=(_TRUE.links[0], _groups("d", "1", "7", "8"), _TRUE.links[2])),
            "first differs between step 2 and step 4 (hash of model fc1); no hash was recorded in between",
        ),
        (
            replace(_TRUE, links=(_TRUE.links[0], _groups("d", "1", "2", "3"), _TRUE.links[2])),
            "first differs between step 2 and step 4 (hash of the state); no hash was recorded in between",
        ),
        (
            replace(_TRUE, links=(_link(2, "d"), *_TRUE.links[1:])),
            "first differs between step 0 and step 2 (hash of the state); no hash was recorded in between",
        ),
        (
            replace(_TRUE, links=(*_TRUE.links[:2], _link(5, "c"))),
            "first differs at step 5 (hash of the state)",
        ),
        (
            _result(_link(2, "a"), _link(4, "d"), losses=(0.5, 0.4, 0.9, 0.2, 0.1)),
            "first differs at step 3 (training loss; the next hash, at step 4, differs too)",
        ),
        (
            _result(_link(2, "a"), _link(6, "d"), losses=(0.5, 0.4, 0.3, 0.9, 0.1)),
            "first differs between step 2 and step 4 (hash of the state); no hash was recorded in between",
        ),
        (
            replace(_TRUE, links=(_TRUE.links[0], _link(4, "d")), history=(*_TRUE.history[:2], *_TRUE.history[3:])),
            "first differs between step 2 and step 4 (hash of the state); no hash was recorded in between",
        ),
        (
            replace(
                _TRUE,
                links=(_TRUE.links[0], _link(4, "d")),
                history=(
                    *_TRUE.history[:2],
                    replace(_TRUE.history[2], top1=0.25),
                    *_TRUE.history[3:],
                ),
            ),
            "first differs between step 2 and step 4 (hash of the state); no hash was recorded in between",
        ),
        (replace(_TRUE, history=_result(losses=(0.5, 0.9, 0.3, 0.2, 0.1)).history), "training loss at step 2: 0.9,"),
    ],
    ids=[
        "group",
        "no group",
        "start",
        "other step",
        "curve",
        "link missing",
        "record missing",
        "accuracy",
        "curve alone",
    ],
)
def test_the_first_difference_lies_between_two_records(recorded: RunResult, first: str) -> None:
    found, *_ = differences(recorded, _TRUE)
    assert found.startswith(first)


def test_equal_numbers_of_the_curve_prove_no_equal_bits() -> None:
    """The losses of steps 3 to 5 agree, and the hash after step 2 was the last equal one."""
    late = replace(_TRUE, links=(_TRUE.links[0], replace(_TRUE.links[2], sha256="d" * 64)))
    again = replace(_TRUE, links=(_TRUE.links[0], _TRUE.links[2]))
    assert differences(late, again)[0].startswith("first differs between step 2 and step 6 ")


def test_one_step_between_two_links_is_named() -> None:
    result = replace(FINISHED, links=(*FINISHED.links[:1], replace(FINISHED.links[1], sha256="cd" * 32)))
    assert differences(result, FINISHED) == ["first differs at step 3 (hash of the state)"]
    assert differences(FINISHED, FINISHED) == []


def _part(recorded: RunResult, kept: tuple[int, ...]) -> tuple[int, int | None]:
    run = StudyRun(study="tiny", spec=cast("Any", None), rows=cast("Any", None), fingerprint="one")
    part = differing_part(run, recorded, _TRUE, is_kept=kept.__contains__)
    return part.first_link, part.n_links


@pytest.mark.parametrize(
    ("recorded", "kept", "part"),
    [
        (replace(_TRUE, links=(_link(2, "d"), *_TRUE.links[1:])), (2, 4), (0, 1)),
        (replace(_TRUE, links=(_TRUE.links[0], _link(4, "d"), _link(6, "d"))), (2, 4), (1, 2)),
        (replace(_TRUE, links=(_TRUE.links[0], _link(4, "d"), _link(6, "d"))), (4,), (0, 2)),
        (replace(_TRUE, links=(*_TRUE.links[:2], _link(6, "d"))), (2, 4), (2, None)),
        (replace(_TRUE, links=(*_TRUE.links[:2], _link(6, "d"))), (2,), (1, None)),
        (replace(_TRUE, top1=0.5), (2, 4), (2, None)),
        (replace(_TRUE, top1=0.5), (), (0, None)),
        (replace(_TRUE, history=_result(losses=(0.5, 0.4, 0.9, 0.2, 0.1)).history), (2, 4), (1, 2)),
        (replace(_TRUE, links=(_TRUE.links[0], _link(3, "d"), _link(6, "d"))), (2, 4), (0, None)),
    ],
    ids=["first", "second", "not kept", "last", "one kept", "answers", "none kept", "curve", "other steps"],
)
def test_a_part_begins_at_the_last_kept_equal_link(
    recorded: RunResult, kept: tuple[int, ...], part: tuple[int, int | None]
) -> None:
    assert _part(recorded, kept) == part


@pytest.fixture(scope="module", autouse=True)
def _links_of_two_steps() -> Iterator[None]:
    with links_of_two_steps() as patches:
        # Canonical runs take half a minute.
        patches.setattr(retraining, "_listed_hashes", lambda _: None)
        yield


@contextmanager
def _steps(fault_before: int | None = None) -> Iterator[list[int]]:
    """Yield the steps that are trained in the block; before one of them a weight is changed, as faulty memory does."""
    run_step, steps = TrainStep.run_step, list[int]()

    def counted(self: TrainStep, *args: object, **options: object) -> None:
        step = self._state.step + 1
        if step == fault_before:
            with torch.no_grad():
                self._state.model.get_parameter("fc1.weight")[0, 0] += 1
        run_step(self, *args, **options)  # type: ignore[arg-type]
        steps.append(step)

    with patch.object(TrainStep, "run_step", counted):
        yield steps


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_verified_project(tmp_path_factory.mktemp("honest"), **ONE_RUN)


@pytest.fixture
def forged(honest: Path, tmp_path: Path) -> Path:
    """A copy whose chain is made up from the second link on."""
    folder = shutil.copytree(honest, tmp_path / "project")
    make_up_chain(folder)
    return folder


def _differing(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Audit the one run of a project, which differs; return its line."""
    capsys.readouterr()
    assert main(["verify", str(folder), "--retrain", "1", "--seed", "1"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DIFFERS")]
    return line


def test_a_difference_is_trained_again_from_its_last_equal_link(
    forged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _steps() as steps:
        line = _differing(forged, capsys)
    assert "first differs between step 2 and step 4 (hash of the state)" in line
    assert steps == [1, 2, 3, 4, 5, 6, 3, 4]


def test_without_checkpoints_a_part_begins_at_the_start(forged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(work_of(forged).kept_checkpoints(entries(forged)[0].name))
    with _steps() as steps:
        line = _differing(forged, capsys)
    assert "first differs between step 2 and step 4 " in line
    assert steps == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]


def _with_other_losses(kept: Path) -> None:
    state: Any = load_kept(kept, 2)
    state["ranks"][0]["loss_sum"] += 1.0
    kept_checkpoint(kept, 2).save(2, state)


def _with_other_weights(kept: Path) -> None:
    state: Any = load_kept(kept, 2)
    next(iter(state["model"].values()))[0] += 1e-3
    kept_checkpoint(kept, 2).save(2, state)


@pytest.mark.parametrize(("tamper", "n_steps"), [(_with_other_losses, 14), (_with_other_weights, 12)])
def test_a_changed_checkpoint_leaves_no_forger_undecided(
    tamper: Callable[[Path], None], n_steps: int, forged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No link hashes the sum of the losses: the part then differs, and the whole run is trained again."""
    tamper(work_of(forged).kept_checkpoints(entries(forged)[0].name))
    with _steps() as steps:
        line = _differing(forged, capsys)
    assert "first differs between step 2 and step 4 " in line
    assert len(steps) == n_steps


def test_a_fault_of_the_recorded_training_is_located_by_its_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _steps(fault_before=3):
        folder = write_verified_project(tmp_path, **ONE_RUN)
    with _steps() as steps:
        line = _differing(folder, capsys)
    assert "first differs at step 3 (training loss; the next hash, at step 4, differs too)" in line
    assert steps == [1, 2, 3, 4, 5, 6, 3, 4]


def test_two_trainings_here_that_differ_say_from_which_step(
    forged: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = iter(range(9))

    def faulty(*args: Any, **options: Any) -> RunResult:
        with _steps(fault_before=3 if next(count) == 0 else None):
            return execute_run(*args, **options)

    monkeypatch.setattr(retraining, "execute_run", faulty)
    capsys.readouterr()
    assert main(["verify", str(forged), "--retrain", "1", "--seed", "1"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "cannot decide, since" in line]
    assert "two trainings here differ too: first differs at step 3 (training loss; " in line


def test_a_test_loss_of_the_curve_is_compared_to_five_digits() -> None:
    def evaluated(loss: float | None) -> RunResult:
        history = (*_TRUE.history[:2], replace(_TRUE.history[2], top1=0.5, test_loss=loss), *_TRUE.history[3:])
        return replace(_TRUE, history=history)

    assert differences(evaluated(1.5 * (1 + 1e-7)), evaluated(1.5)) == []
    for other in (0.7, None):
        (line,) = differences(evaluated(other), evaluated(1.5))
        assert line.startswith("test loss at step 3: ")
