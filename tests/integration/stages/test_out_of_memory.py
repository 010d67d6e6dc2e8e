"""A stage that runs out of memory names the setting to lower; `test_loop_out_of_memory` has the training."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.prepare import PrepareConfig
from pipeline.stages import extract, prepare, reduce
from pipeline.stages import filter as filter_stage
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import write_params
from tests.integration.faults.test_damaged_artifacts import exit_code_of, project

__all__ = ["project"]


def _run_out(*args: Any, **options: Any) -> None:
    raise MemoryError("a large array")


def test_prepare_names_the_size_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_params(tmp_path)
    monkeypatch.setattr(prepare, "store_images", _run_out)
    assert exit_code_of("prepare", tmp_path) == 2
    line = str(printed_error(capsys.readouterr().err))
    assert line.startswith("prepare.image_size: the images, stored with 16 pixels, do not fit the memory")


def test_only_image_files_can_be_too_large_to_decode() -> None:
    config = PrepareConfig(dataset="image_folder", path="own", image_size=32, max_megapixels=20.0, test_size=0.2)
    assert prepare._too_large(config).startswith("prepare.max_megapixels: images of up to 20, stored with 32 pixels")


@pytest.mark.parametrize(
    ("scheduler", "workers", "start"),
    [("local", 3, "dask.workers: "), ("local", 1, "prepare.train_size: "), ("none", 3, "prepare.train_size: ")],
)
def test_the_filter_names_workers_only_where_there_are_several(scheduler: str, workers: int, start: str) -> None:
    assert filter_stage._too_large(60, scheduler, workers).startswith(start)


@pytest.mark.parametrize(
    ("module", "function", "start"),
    [
        (extract, "_extract_train", "extract.batch_size: a pass of "),
        (reduce, "embed", "reduce.landmarks: PCA and t-SNE of "),
        (filter_stage, "apply_filter", "prepare.train_size: the filter of 60 images does "),
    ],
)
def test_a_stage_names_the_setting_to_lower(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    module: Any, function: str, start: str,
) -> None:  # fmt: skip
    shutil.rmtree(project / "work/finished", ignore_errors=True)  # else the features are there
    monkeypatch.setattr(module, function, _run_out)
    assert exit_code_of(module.__name__.rpartition(".")[2], project) == 2
    line = str(printed_error(capsys.readouterr().err))
    assert line.startswith(start)
    assert "fit the memory" in line
