"""`verify` compares images and labels by value where a run recorded that, since Parquet files have other bytes."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.tables import read_parquet
from pipeline.runs.record import write_checksums
from tests.fixtures.forgeries import data_of, entries
from tests.fixtures.records import record
from tests.fixtures.verified import STUDY_NAME, run_verify, train


def _prepare_again(folder: Path, *, label: int = 0, compression: str = "none") -> None:
    """Write the manifests as another version of pyarrow does; `label` is added to the first label of both."""
    data = data_of(folder)
    for split in ("train", "test"):
        path = data.manifest(split)
        before, manifest = path.read_bytes(), read_parquet(path)
        labels = manifest["label"].to_pylist()
        changed = pa.array([labels[0] + label, *labels[1:]], manifest["label"].type)
        column = manifest.column_names.index("label")
        pyarrow.parquet.write_table(manifest.set_column(column, "label", changed), path, compression=compression)
        assert path.read_bytes() != before
    record(data, "prepare")


def _edit_content(folder: Path, edit: Callable[[str], str]) -> None:
    """Change the recorded content of every run, which is no part of its fingerprint."""
    for entry in entries(folder):
        key = read_json(entry / "identity.json")
        write_json(entry / "identity.json", {**key, "content": edit(key["content"])})
        write_checksums(entry)


def _verify(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[str], list[str]]:
    """Return the exit code, the contradictions, and the other lines."""
    code, lines = run_verify(folder, capsys, *options)
    wrong = [line for line in lines if line.startswith("DIFFERS")]
    return code, wrong, [line for line in lines if line not in wrong]


def test_files_of_other_bytes_verify(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _prepare_again(project)
    code, wrong, lines = _verify(project, capsys, "--retrain", "1")
    assert (code, wrong) == (0, [])
    assert any("8 runs were trained on files of other bytes, with the images and labels of" in line for line in lines)
    assert len([line for line in lines if line.startswith("equal")]) == 1


def test_accuracies_are_checked_on_files_of_other_bytes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _prepare_again(project)
    entry = entries(project)[0]
    result = read_json(entry / "result.json")
    write_json(entry / "result.json", {**result, "balanced_accuracy": result["balanced_accuracy"] / 2})
    write_checksums(entry)
    code, wrong, _ = _verify(project, capsys)
    assert code == 1
    assert any(f"{entry}: balanced_accuracy: " in line for line in wrong)


def test_another_label_does_not_verify(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _prepare_again(project, label=1)
    code, wrong, _ = _verify(project, capsys)
    assert code == 1
    assert len([line for line in wrong if "images and labels of the data of small_cnn" in line]) == 8


def test_a_run_without_content_is_compared_by_bytes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As earlier versions recorded it."""
    _edit_content(project, lambda content: "")
    assert _verify(project, capsys)[0] == 0
    _prepare_again(project)
    code, wrong, _ = _verify(project, capsys)
    assert code == 1
    assert len([line for line in wrong if "images and labels of the data of small_cnn" in line]) == 8
    assert any("train.parquet: SHA-256 as input of train@digits" in line for line in wrong)


def test_a_content_that_is_not_that_of_the_files(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _edit_content(project, lambda content: content[::-1])
    code, wrong, _ = _verify(project, capsys)
    assert code == 1
    assert len([line for line in wrong if "identity.json: content of the images and labels: " in line]) == 8
    assert len(wrong) == 8


@pytest.mark.parametrize("compressions", [["none"], ["none", "gzip"]], ids=len)
def test_a_run_before_and_after_is_no_copy(
    compressions: list[str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same run on files of other bytes has another key and equal bits, also if the files here are again others."""
    for compression in compressions:
        _prepare_again(project, compression=compression)
        train(project, STUDY_NAME)
    assert len(entries(project)) == 8 * (1 + len(compressions))
    _prepare_again(project, compression="snappy")
    code, wrong, _ = _verify(project, capsys)
    assert (code, wrong) == (0, [])
