"""`iterate`: the images that a round trains on, and its extractor as one of all images."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.artifacts.files import read_json, write_array
from pipeline.artifacts.metrics import read_dynamics, write_dynamics
from pipeline.artifacts.prepared import count_planted, load_prepared
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.commands.iterate import rounds
from pipeline.commands.iterate.rounds import write_kept_images
from pipeline.commands.iterate.running import install_extractor
from pipeline.config.params import load_params
from pipeline.datasets.splits import assign_folds
from pipeline.paths import DataPaths
from pipeline.training.weights import load_fold_networks, save_fold_networks
from tests.fixtures.iteration import CLASSES, SIZE, N, write_project
from tests.fixtures.planted import say_planted
from tests.fixtures.projects import NETWORK
from tests.fixtures.training import TINY, build_resnet


@pytest.mark.parametrize("storage", ["array", "files"])
def test_the_images_kept_are_a_prepared_data_set_of_their_own(
    tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_BLOCK_BYTES", 7 * 3 * SIZE**2)
    complete = write_project(tmp_path, prepare={"storage": storage})
    part, keep = DataPaths(root=tmp_path / "kept"), np.arange(N) % 3 > 0
    keep[: N // len(CLASSES)] = False  # filter.allow_empty lets a class go
    before = read_parquet(complete.manifest("train"))
    write_kept_images(complete, part, keep, before["label"].to_numpy())
    manifest = read_parquet(part.manifest("train"))
    assert manifest.drop_columns("sample_id").equals(before.filter(keep).drop_columns("sample_id"))
    assert manifest["sample_id"].to_pylist() == list(range(keep.sum()))
    for name in ("test.npy", "test.parquet"):
        (part.root / "prepare" / name).symlink_to(complete.root / "prepare" / name)
    all_images, kept = (load_prepared(data, folder=tmp_path / "images") for data in (complete, part))
    assert np.array_equal(kept.train.images, all_images.train.images[keep])
    assert (kept.class_names, kept.image_size) == (CLASSES, SIZE)
    assert kept.mean == pytest.approx(kept.train.images.mean((0, 1, 2)) / 255)
    assert kept.std == pytest.approx(kept.train.images.std((0, 1, 2)) / 255)
    if storage == "files":
        assert kept.train.files is not None
        assert all_images.train.files is not None
        assert kept.train.files.read(5) == all_images.train.files.read(int(np.flatnonzero(keep)[5]))
    metrics = read_json(part.prepare_metrics)
    assert metrics["n_train"] == sum(metrics["class_counts"]["train"].values()) == keep.sum()
    assert (metrics["n_test"], metrics["n_val"]) == (24, sum(manifest["val"].to_pylist()))


@pytest.mark.parametrize("kept", [slice(1, None), slice(6, None)])
def test_a_round_does_not_depend_on_the_true_labels(tmp_path: Path, kept: slice) -> None:
    """The number of planted labels is that of all images: the number among those kept would tell which were wrong."""
    complete, keep = write_project(tmp_path), np.zeros(N, dtype=np.bool_)
    keep[kept] = True
    prepared = read_parquet(complete.manifest("train"))
    labels, written = prepared["label"].to_numpy(), []
    for wrong in ((0, 1, 5), (20, 30, 40)):
        write_parquet(complete.manifest("train"), prepared)
        say_planted(complete, {row: int(labels[row] + 1) % len(CLASSES) for row in wrong})
        part = DataPaths(root=tmp_path / f"kept without {wrong}")
        write_kept_images(complete, part, keep, labels)
        assert count_planted(part) == len(wrong)
        columns = ["sample_id", "path", "label", "label_name", "sha256", "val"]
        assert read_parquet(part.manifest("train")).column_names == columns
        written.append({path.name: path.read_bytes() for path in part.root.rglob("*") if path.is_file()})
    assert written[0] == written[1]


def test_a_round_trains_on_the_labels_after_overrides(tmp_path: Path) -> None:
    complete, part, keep = write_project(tmp_path), DataPaths(root=tmp_path / "kept"), np.arange(N) != 1
    given = read_parquet(complete.manifest("train"), ["label"])["label"].to_numpy()
    labels = given.copy()
    labels[[1, 2]] = (given[[1, 2]] + 1) % len(CLASSES)
    write_kept_images(complete, part, keep, labels)
    manifest = read_parquet(part.manifest("train"), ["label", "label_name"])
    assert manifest["label"].to_pylist() == labels[keep].tolist()
    assert manifest["label_name"].to_pylist() == [CLASSES[label] for label in labels[keep]]
    part.finetune_metrics(NETWORK).parent.mkdir(parents=True)
    part.finetune_metrics(NETWORK).write_text("{}")
    write_array(part.training_confidence(NETWORK), np.full(keep.sum(), 0.5, dtype=np.float32))
    install_extractor(part, complete, NETWORK, keep, load_params(tmp_path / "params.yaml").finetune)
    # The score of image 2 is that of the label as given, on which the round did not train.
    unknown = np.isin(np.arange(N), [1, 2])
    np.testing.assert_array_equal(np.load(complete.training_confidence(NETWORK)), np.where(unknown, np.nan, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize("folds", [1, 2])
def test_the_extractor_of_the_images_kept_is_one_of_all(tmp_path: Path, folds: int) -> None:
    """Images that no fold's network saw have the fold of a draw over all; the others keep their own."""
    everything = write_project(tmp_path, finetune={"folds": folds})
    kept, keep = DataPaths(root=tmp_path / "kept"), np.arange(N) % 3 > 0
    write_kept_images(everything, kept, keep, read_parquet(everything.manifest("train"))["label"].to_numpy())
    sampled = np.arange(keep.sum(), dtype=np.int32) % folds
    save_fold_networks(
        kept.extractor(NETWORK), [build_resnet(seed=seed) for seed in range(folds)], sampled, TINY, CLASSES
    )
    kept.finetune_metrics(NETWORK).write_text("{}")
    half = np.full(keep.sum(), 0.5, dtype=np.float32)
    write_array(kept.training_confidence(NETWORK), half)
    if folds == 2:  # an earlier version recorded none
        write_dynamics(kept.training_dynamics(NETWORK), half, 2 * half)
    config = load_params(tmp_path / "params.yaml").finetune
    for _ in range(2):  # an interrupted round does so again
        install_extractor(kept, everything, NETWORK, keep, config)
    assert everything.finetune_metrics(NETWORK).read_text() == "{}"
    np.testing.assert_array_equal(np.load(everything.training_confidence(NETWORK)), np.where(keep, 0.5, np.nan))
    dynamics = read_dynamics(everything.training_dynamics(NETWORK), N)
    assert (dynamics is None) == (folds == 1)
    if dynamics is not None:
        np.testing.assert_array_equal(dynamics, [np.where(keep, 0.5, np.nan), np.where(keep, 1, np.nan)])
    handed, own = (load_fold_networks(data.extractor(NETWORK)) for data in (everything, kept))
    if folds == 1:
        assert everything.extractor(NETWORK).readlink() == kept.extractor(NETWORK)
        return
    assert handed.folds is not None
    assert np.array_equal(handed.folds[keep], sampled)
    manifest = read_parquet(everything.manifest("train"))
    paths, contents = (manifest[name].to_pylist() for name in ("path", "sha256"))
    all_drawn = assign_folds(paths, manifest["label"].to_numpy(), folds, seed=config.seed, contents=contents)
    assert np.array_equal(handed.folds[~keep], all_drawn[~keep])
    for ours, theirs in zip(handed.networks, own.networks, strict=True):
        assert all(a.equal(b) for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True))
