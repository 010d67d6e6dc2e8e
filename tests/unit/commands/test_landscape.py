"""The command on a tiny study: its measurements, resumption, and its part of the report."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.__main__ import main
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.tables import read_parquet
from pipeline.commands import landscape as command
from pipeline.landscape import study as of_study
from pipeline.landscape.curvature import measure
from pipeline.models.small_cnn import SmallCnn
from pipeline.paths import DataPaths, WorkPaths
from tests.fixtures.projects import folder_arguments
from tests.fixtures.training import stage, write_project

STUDY: dict[str, Any] = {"models": ["small_cnn"], "seeds": [0, 1], "keep_weights": "all"}


def _arguments(folder: Path, *more: str) -> list[str]:
    return ["--study", "tiny", "--directions", "2", *(more or ("--images", "20")), *folder_arguments(folder)]


# Each test needs trained networks or a launched study.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landscape")
    write_project(folder, study=STUDY)
    assert stage("train", folder) == 0
    assert command.main(_arguments(folder)) == 0
    return folder


def test_every_network_has_a_row_and_slices_through_its_weights(project: Path) -> None:
    data = DataPaths(root=project / "data")
    rows = read_parquet(data.landscape("tiny")).to_pylist()
    runs = read_parquet(data.runs("tiny")).to_pylist()
    assert [(row["fingerprint"], row["split"]) for row in rows] == [
        (run["fingerprint"], split) for run in runs for split in ("train", "test")
    ]
    for row in rows:
        slices = np.array(row["slices"])
        assert slices.shape == (2, 21)
        np.testing.assert_allclose(slices[:, 10], row["loss"], rtol=1e-5)
        assert row["rise"] == pytest.approx(slices[:, 5:16].mean() - row["loss"])  # distances from -0.5 to 0.5
        assert row["converged"]
        assert row["top_eigenvalue"] > 0
    # The same network, seen by other images.
    assert rows[0]["loss"] != rows[1]["loss"]
    assert data.landscape_figure("tiny").read_bytes().startswith(b"<?xml")


def test_what_is_measured_is_not_measured_again_and_bytes_stay(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, work = DataPaths(root=project / "data"), WorkPaths(root=project / "work")
    before = {path.name: path.read_bytes() for path in (project / "data" / "landscape").iterdir()}
    one = min(work.landscape.iterdir())
    one.unlink()
    calls: list[int] = []

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return measure(*args, **options)

    monkeypatch.setattr(of_study, "measure", counted)
    data.landscape("tiny").unlink()
    assert command.main(_arguments(project)) == 0
    assert len(calls) == 1
    assert {path.name: path.read_bytes() for path in (project / "data" / "landscape").iterdir()} == before


def test_without_a_number_it_takes_the_size_of_the_smaller_split(project: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(project, tmp_path / "copied")
    data = DataPaths(root=copied / "data")
    for run in read_parquet(data.runs("tiny"))["fingerprint"].to_pylist()[1:]:
        WorkPaths(root=copied / "work").ledger.joinpath(run, "weights.pt").unlink()
    assert command.main(_arguments(copied, "--seed", "0")) == 0
    sizes = [len(read_parquet(data.manifest(split))) for split in ("train", "test")]
    assert min(sizes) < max(sizes) < 500
    assert {row["n_images"] for row in read_parquet(data.landscape("tiny")).to_pylist()} == {min(sizes)}
    assert read_json(data.provenance("landscape", "tiny"))["parameters"]["images"] == min(sizes)


def test_figure_and_command_state_the_number_of_planted_labels(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = shutil.copytree(project, tmp_path / "copied")
    data = DataPaths(root=copied / "data")
    # Keys alone: another manifest would be measured again.
    write_json(data.prepare_metrics, {**read_json(data.prepare_metrics), "n_planted": 7})
    assert command.main(_arguments(copied)) == 0
    assert "labels changed on purpose: 7" in capsys.readouterr().out
    assert b"labels changed on purpose: 7" in data.landscape_figure("tiny").read_bytes()
    assert b"on purpose" not in DataPaths(root=project / "data").landscape_figure("tiny").read_bytes()


def test_an_interruption_leaves_no_figure_of_older_numbers(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(project, tmp_path / "copied")

    def interrupted(_: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "svg", interrupted)
    with pytest.raises(SystemExit):
        command.main(_arguments(copied))
    assert not DataPaths(root=copied / "data").landscape_figure("tiny").exists()


def test_memory_that_runs_out_names_the_argument(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        return torch.empty(2**50, dtype=torch.uint8)

    monkeypatch.setattr(SmallCnn, "features", failing)
    with pytest.raises(SystemExit) as ended:
        main(["landscape", *_arguments(project, "--images", "20", "--seed", "5")])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: --images 20: ")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--images", "61"), "--images 61: "),
        (("--directions", "0"), "--directions 0"),
        (("--seed", f"{2**63}"), "--seed"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    project: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["landscape", *_arguments(project, *more)])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
