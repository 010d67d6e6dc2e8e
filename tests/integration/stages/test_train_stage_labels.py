"""Labels changed by hand or by suggestion: which arms train on them, and what they are called in keys and tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from pipeline.artifacts.tables import read_csv, write_csv
from pipeline.paths import DataPaths
from pipeline.runs.arm_rows import KEPT_COLUMNS, TrainRows
from pipeline.runs.grid import RunSpec
from pipeline.runs.ledger import RunResult
from pipeline.stages import train as train_stage
from pipeline.training.state import HistoryRecord
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.training import NAMES, runs_of, stage, write_kept, write_project, write_suggestions

_N = 60
_ARMS = ["full", "filtered", "random", "relabeled"]
_GIVEN = np.arange(_N) % len(NAMES)
_KEEP = np.arange(_N) % 10 != 0
_SUGGESTED = (_GIVEN + 1) % len(NAMES)
# Of the six images that the filter drops, three are above one half.
_PROBABILITY = np.linspace(0, 0.99, _N, dtype=np.float32)

_Trained = dict[tuple[str, int], TrainRows]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> _Trained:
    """The rows of each run that the stage trains, by arm and seed; nothing is trained."""
    by_run: _Trained = {}

    def execute(spec: RunSpec, _: Any, rows: TrainRows, **__: Any) -> RunResult:
        by_run[spec.arm, spec.settings.seed] = rows
        history = (HistoryRecord(epoch=1.0, step=1, examples=20, train_loss=1.0, lr=0.1),)
        return RunResult(
            status="diverged", top1=None, balanced_accuracy=None, loss=None, correct=None, history=history, workers=1,
            hardware=("made up",), skipped_steps=0, micro_batch=20, critical_batch=None, seconds=1.5,
        )  # fmt: skip

    monkeypatch.setattr(train_stage, "execute_run", execute)
    return by_run


def _project(folder: Path, labels: NDArray[np.int64], **study: Any) -> DataPaths:
    data = write_project(folder, study={"arms": _ARMS, "seeds": [0], **study})
    write_kept(data, _KEEP, labels)
    write_suggestions(data, _KEEP, labels, _SUGGESTED, _PROBABILITY)
    return data


def _by_hand() -> NDArray[np.int64]:
    """Return labels after overrides: two kept images are relabeled."""
    labels = _GIVEN.copy()
    labels[[1, 2]] = 3
    return labels


def test_decisions_by_hand_change_their_rows_and_not_the_controls(tmp_path: Path, trained: _Trained) -> None:
    data = _project(tmp_path, _by_hand())
    assert stage("train", tmp_path) == 0
    for arm, expected in {"full": _GIVEN, "filtered": _by_hand(), "random": _GIVEN, "relabeled": _by_hand()}.items():
        rows = trained[arm, 0]
        assert rows.labels[rows.mask].tolist() == expected[rows.mask].tolist(), arm
    assert trained["relabeled", 0].mask.all()
    assert {row["arm"]: row["n_relabeled"] for row in runs_of(data)} == {
        "full": 0, "filtered": 2, "random": 0, "relabeled": 2,
    }  # fmt: skip
    assert len({row["steps"] for row in runs_of(data)}) == 1


def test_a_bound_changes_the_labels_of_dropped_images_above_it(tmp_path: Path, trained: _Trained) -> None:
    data = _project(tmp_path, _by_hand(), relabel_above=0.5)
    assert stage("train", tmp_path) == 0
    expected = np.where(~_KEEP & (_PROBABILITY > 0.5), _SUGGESTED, _by_hand())
    assert (expected != _by_hand()).sum() == 3
    assert trained["relabeled", 0].labels.tolist() == expected.tolist()
    assert {row["arm"]: row["n_relabeled"] for row in runs_of(data)}["relabeled"] == 5


def test_finished_runs_with_other_labels_are_not_reused(tmp_path: Path, trained: _Trained) -> None:
    def keys(labels: NDArray[np.int64]) -> dict[str, str]:
        trained.clear()
        data = _project(tmp_path, labels)
        assert stage("train", tmp_path) == 0
        return {row["arm"]: row["fingerprint"] for row in runs_of(data)}

    before = keys(_GIVEN)
    # All images with the labels as given are one run.
    assert before["relabeled"] == before["full"]
    after = keys(_by_hand())
    assert set(trained) == {("filtered", 0), ("relabeled", 0)}
    assert {arm for arm in _ARMS if before[arm] != after[arm]} == {"filtered", "relabeled"}
    assert keys(_GIVEN) == before
    assert trained == {}


@pytest.mark.parametrize("file", ["kept", "points"])
def test_a_filter_of_other_labels_is_refused(
    tmp_path: Path, trained: _Trained, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    data = _project(tmp_path, _by_hand(), relabel_above=0.5)
    if file == "points":
        write_suggestions(data, _KEEP, _GIVEN, _SUGGESTED, _PROBABILITY)
    else:
        kept = read_csv(data.kept("resnet18"), KEPT_COLUMNS)
        names = pa.array(["elm", *kept["label_name"].to_pylist()[1:]])
        write_csv(data.kept("resnet18"), kept.set_column(2, "label_name", names))
    assert stage("train", tmp_path) == 2
    assert printed_error(capsys.readouterr().err).key == str(getattr(data, file)("resnet18"))
    assert trained == {}
