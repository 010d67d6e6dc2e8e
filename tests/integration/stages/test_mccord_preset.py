"""presets/mccord.yaml trains its first steps on made-up images in the layout of ImageNet."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.artifacts.tables import read_parquet, write_csv
from pipeline.paths import DataPaths
from pipeline.stages.harness import run_stage
from pipeline.stages.prepare import prepare
from tests.fixtures.images import photo, write_folder
from tests.fixtures.projects import ROOT, folder_arguments
from tests.fixtures.training import stage

N_TRAIN = BATCH = 8
IMAGE_SIZE = 40
# Smaller batch, number of workers and crop, and 6 epochs of one step each, of which 5 are the warm-up.
STUDY = {"batch_sizes": [BATCH], "seeds": [0], "budget": {"epochs": 6}}
TRAIN = {"simulated_workers": 2, "threads_per_worker": 1, "augmentation": {"crop_size": 32, "flip": True}}


@pytest.fixture
def project(tmp_path: Path) -> DataPaths:
    """A prepared project; the filter, which no study of this preset uses, keeps all images."""
    names = [f"{split}/{name}/{i}.JPEG" for split in ("train", "val") for name in ("n01", "n02") for i in range(4)]
    images = {name: photo(i, (60, 50), "JPEG") for i, name in enumerate(names)}
    tree: dict[str, Any] = YAML(typ="safe", pure=True).load(ROOT / "presets" / "mccord.yaml")
    tree["prepare"] |= {"image_size": IMAGE_SIZE, "path": str(write_folder(tmp_path / "imagenet", images))}
    tree["finetune"]["augmentation"]["crop_size"] = 32
    tree["train"] |= TRAIN
    for study in tree["studies"].values():
        study.update(STUDY)
    # A warm-up of 10 epochs and more does not fit into 6.
    tree["studies"] = {name: tree["studies"][name] for name in ("baseline", "warmup_0", "unscaled")}
    with (tmp_path / "params.yaml").open("w") as file:
        YAML().dump(tree, file)
    run_stage("prepare", prepare, argv=folder_arguments(tmp_path))
    data = DataPaths(root=tmp_path / "data")
    manifest = read_parquet(data.manifest("train"))
    assert len(manifest) == N_TRAIN
    write_csv(data.kept("resnet50"), manifest.select(["sample_id", "path", "label_name"]))
    return data


@pytest.mark.slow
def test_its_first_steps_train_with_the_papers_rates(project: DataPaths) -> None:
    rows = {}
    for name in ("baseline", "warmup_0", "unscaled"):
        assert stage("train", project.root.parent, name) == 0
        (rows[name],) = read_parquet(project.runs(name)).to_pylist()
    assert {row["status"] for row in rows.values()} == {"finished"}
    assert {(row["model"], row["arm"], row["steps"]) for row in rows.values()} == {("resnet50", "full", 6)}
    peaks = {name: (row["peak_learning_rate"], row["warmup_steps"]) for name, row in rows.items()}
    scaled = 0.0125 * BATCH / 32
    assert peaks == {"baseline": (scaled, 5), "warmup_0": (scaled, 0), "unscaled": (0.0125, 5)}
    assert json.loads(rows["baseline"]["settings"])["schedule_options"] == {"milestones": [30, 60], "factor": 0.1}
