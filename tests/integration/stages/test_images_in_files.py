"""With `prepare.storage: files` every stage that reads images reads the large ones from their files."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.artifacts.prepared import load_prepared, prepared_digest
from pipeline.artifacts.tables import read_parquet, write_csv
from pipeline.paths import DataPaths, WorkPaths
from pipeline.stages.harness import run_stage
from pipeline.stages.prepare import prepare
from pipeline.training.weights import load_trained
from tests.fixtures.hub_folders import clone
from tests.fixtures.images import photo, write_folder, write_tar
from tests.fixtures.interrupted_study import resumed_steps
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK, folder_arguments, write_params
from tests.fixtures.records import record_again
from tests.fixtures.training import TINY_STUDY, command, files_below, kill, run, runs_of, stage, start, wait_until

N_TRAIN, N_TEST, CROP = 24, 8, 16
PREPARE = {"dataset": "image_folder", "storage": "files", "image_size": 72, "test_size": None}
RECIPE = {"threads_per_worker": 1, "schedule": {"name": "cosine"}, "augmentation": {"crop_size": CROP, "flip": True}}
STUDY: dict[str, Any] = {"batch_sizes": [8], "arms": ["filtered"], "seeds": [0]}


def _photos(folder: Path) -> Path:
    """Write different files of two classes, in several sizes and in the layout of ImageNet."""
    counts = {"train": N_TRAIN // 2, "test": N_TEST // 2}
    names = [f"{split}/{name}/{i:02}.JPEG" for split, n in counts.items() for name in ("cat", "dog") for i in range(n)]
    return write_folder(folder, {name: photo(i, (90 + i, 120 - i), "JPEG") for i, name in enumerate(names)})


def _parameters(folder: Path, images: Path, study: dict[str, Any], **preparation: Any) -> None:
    write_params(
        folder,
        prepare={**PREPARE, "path": str(images), **preparation},
        finetune={**RECIPE, "batch_size": 8, "budget": {"steps": 2}},
        train=RECIPE,
        studies={"digits": None, "tiny": {**TINY_STUDY, **STUDY, **study}},
    )


def _project(folder: Path, **study: Any) -> DataPaths:
    """Write a prepared project whose filter drops every fifth training image."""
    _parameters(folder, _photos(folder / "photos"), study)
    _prepare(folder)
    data = DataPaths(root=folder / "data")
    manifest = read_parquet(data.manifest("train"))
    write_csv(data.kept(NETWORK), manifest.select(["sample_id", "path", "label_name"]).filter(_kept()))
    return data


def _prepare(folder: Path) -> None:
    run_stage("prepare", prepare, argv=folder_arguments(folder))


def _kept() -> NDArray[np.bool_]:
    return np.arange(N_TRAIN) % 5 > 0


def _has_checkpoint(folder: Path) -> bool:
    return bool(files_below(WorkPaths(root=folder / "work").root, "step-*.pt"))


def test_the_disk_has_thumbnails_and_the_paths_in_the_folder(tmp_path: Path) -> None:
    data = _project(tmp_path)
    assert np.load(data.images("train")).shape == (N_TRAIN, 64, 64, 3)
    metrics = json.loads(data.prepare_metrics.read_text())
    assert (metrics["image_size"], metrics["files_in"]) == (72, "")
    prepared = load_prepared(data, folder=tmp_path / "photos")
    assert prepared.train.files is not None
    first = read_parquet(data.manifest("train"))["path"][0].as_py()
    assert prepared.train.files.read(0) == (tmp_path / "photos" / first).read_bytes()


def test_every_stage_reads_the_files(tmp_path: Path) -> None:
    """The thumbnails are black, so that a stage that reads them would see black."""
    data = _project(tmp_path)
    for split in ("train", "test"):
        np.save(data.images(split), np.zeros_like(np.load(data.images(split))))
    record_again(data)
    assert stage("finetune", tmp_path) == 0
    assert stage("extract", tmp_path) == 0
    features = np.load(data.features(NETWORK))
    assert features.shape == (N_TRAIN, 512)
    assert len(np.unique(features[:, :8], axis=0)) == N_TRAIN
    assert stage("train", tmp_path) == 0
    (row,) = runs_of(data)
    assert (row["status"], row["n_train"]) == ("finished", _kept().sum())
    settings = json.loads(row["settings"])
    assert (settings["crop_area"], settings["format"]["crop_size"]) == (0.08, CROP)
    # The saved network takes the files as they are, and says what the run said of them.
    network = load_trained(data.trained_weights("tiny"))
    test = read_parquet(data.manifest("test"), ["path", "label_name"]).to_pylist()
    predicted = network.predict([tmp_path / "photos" / row["path"] for row in test])
    correct = [name == row["label_name"] for name, row in zip(predicted, test, strict=True)]
    assert correct == np.load(data.correct("tiny"))[0].tolist()
    assert load_trained(data.extractor(NETWORK)).resizing == network.resizing == "center_crop"


def test_labels_from_a_file_are_those_of_images_in_files(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label\ntrain/cat/03.JPEG,dog\n")
    images = _photos(tmp_path / "photos")
    _parameters(tmp_path, images, {}, label_file=str(labels))
    _prepare(tmp_path)
    prepared = load_prepared(DataPaths(root=tmp_path / "data"), folder=images)
    assert prepared.train.labels.tolist() == [int(row == 3 or row >= N_TRAIN // 2) for row in range(N_TRAIN)]


def test_runs_on_files_and_on_an_array_have_different_keys(tmp_path: Path) -> None:
    """If the thumbnails have the size of the images, both preparations have the same array and manifest."""
    digests = []
    for storage in ("array", "files"):
        folder = tmp_path / storage
        folder.mkdir()
        _parameters(folder, _photos(folder / "photos"), {}, storage=storage, image_size=32)
        _prepare(folder)
        digests.append(prepared_digest(DataPaths(root=folder / "data")))
    assert digests[1].startswith(f"{digests[0]} files read by Pillow ")


@pytest.mark.parametrize("name", ["finetune", "train"])
def test_a_changed_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    _project(tmp_path)
    path = tmp_path / "photos" / "test" / "dog" / "03.JPEG"
    path.write_bytes(photo(99, (50, 50), "JPEG"))
    capsys.readouterr()
    assert stage(name, tmp_path) == 2
    assert printed_error(capsys.readouterr().err).key == str(path)


def test_an_archive_has_no_files_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _parameters(tmp_path, write_tar(tmp_path / "photos.tar", {"train/cat/0.jpg": photo(0)}), {})
    with pytest.raises(SystemExit) as ended:
        _prepare(tmp_path)
    assert ended.value.code == 2
    assert printed_error(capsys.readouterr().err).key == "prepare.path"


@pytest.mark.slow
def test_a_study_killed_in_mid_epoch_ends_with_the_same_weights(tmp_path: Path) -> None:
    study = {"models": ["small_cnn"], "budget": {"steps": 60}}
    weights = []
    for name in ("undisturbed", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        data = _project(folder, **study, recipe={"checkpoint": {"seconds": None, "steps": 7}})
        if name == "killed":
            process = start(command("train", folder))
            try:
                wait_until(partial(_has_checkpoint, folder), process)
            finally:
                kill(process)
            assert not data.runs("tiny").exists()
        done = run(command("train", folder))
        assert done.returncode == 0, done.stderr
        assert bool(resumed_steps(done.stderr)) == (name == "killed"), done.stderr
        weights.append(data.trained_weights("tiny").read_bytes())
    assert weights[0] == weights[1]


def test_the_labels_may_come_from_a_table(tmp_path: Path) -> None:
    images = _photos(tmp_path / "photos")
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.JPEG"))
    lines = ["file_name,kind", *(f"{name},{'dog' if i % 2 else 'cat'}" for i, name in enumerate(names))]
    (images / "metadata.csv").write_text("\n".join(lines))
    _parameters(tmp_path, images, STUDY, label_column="kind")
    _prepare(tmp_path)
    prepared = load_prepared(DataPaths(root=tmp_path / "data"), folder=images)
    assert prepared.class_names == ("cat", "dog")
    assert prepared.train.labels.tolist() == [i % 2 for i, name in enumerate(names) if name.startswith("train/")]
    assert prepared.train.files is not None
    assert prepared.train.files.read(0) == (images / "train/cat/00.JPEG").read_bytes()


def test_parquet_shards_have_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _parameters(tmp_path, clone(tmp_path / "hub"), STUDY)
    with pytest.raises(SystemExit):
        _prepare(tmp_path)
    assert "prepare.storage: files needs image files" in capsys.readouterr().err
