"""The files that a stage reads, as its provenance names them."""

from pathlib import Path

from pipeline.artifacts.recorded import StageFiles
from pipeline.artifacts.stage_inputs import input_paths


def test_each_file_is_named_once_and_an_optional_one_if_it_exists(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c", "d")]
    paths[2].touch()
    inputs = [
        StageFiles(stage="prepare", files=(paths[0], paths[1])),
        StageFiles(stage="finetune", item="resnet18", files=(paths[1],), optional=(paths[2], paths[3])),
    ]
    assert input_paths(inputs) == paths[:3]
