"""Cases of benchmarks/label_noise: planted labels, and labels of files."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.label_noise.cases import CIFAR10_PAIRS, Case, Images, iter_cases, load_images_and_truth, make_labels
from benchmarks.label_noise.folders import case_params, is_complete, make_folder, write_subset
from pipeline.artifacts.prepared import load_prepared
from pipeline.artifacts.tables import read_parquet
from pipeline.config.params import check_params, load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from tests.fixtures.iteration import write_project
from tests.fixtures.planted import say_planted
from tests.fixtures.projects import write_params
from tests.fixtures.training import NAMES, write_prepared

_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _images(class_names: tuple[str, ...] = _CIFAR10, per_class: int = 20) -> Images:
    truth = np.repeat(np.arange(len(class_names)), per_class)
    pixels = np.random.default_rng(0).integers(0, 256, (len(truth), 4, 4, 3), dtype=np.uint8)
    mask = np.ones(len(truth), dtype=np.bool_)
    return Images(mask=mask, pixels=pixels, truth=truth, data_labels=None, class_names=class_names)


def _load(folder: Path, **arguments: Any) -> Images:
    data = DataPaths(root=folder)
    write_prepared(data, n_train=40)
    defaults = {"data": folder, "labels": None, "truth": None, "images": None}
    return load_images_and_truth(argparse.Namespace(**{**defaults, **arguments}), load_prepared(data, folder=None))


def _csv(folder: Path, text: str) -> Path:
    path = folder / "labels.csv"
    path.write_text("path,label\n" + text)
    return path


def test_pair_noise_follows_the_pairs_of_cifar10() -> None:
    images = _images()
    noisy = make_labels(Case(kind="pair", rate=0.4), images, seed=0)
    moved = {(_CIFAR10[own], _CIFAR10[new]) for own, new in zip(images.truth, noisy, strict=True) if own != new}
    assert moved == set(CIFAR10_PAIRS.items())
    assert (noisy != images.truth).sum() == 5 * 8


def test_pair_noise_needs_the_classes_of_cifar10() -> None:
    with pytest.raises(InputError) as refused:
        make_labels(Case(kind="pair", rate=0.4), _images(NAMES), seed=0)
    assert refused.value.key == "--kinds"


def test_a_rate_that_plants_nothing_is_refused() -> None:
    with pytest.raises(InputError) as refused:
        make_labels(Case(kind="symmetric", rate=0.001), _images(), seed=0)
    assert refused.value.key == "--rates"


def test_seeds_and_rates_draw_apart() -> None:
    images = _images()
    drawn = [
        make_labels(Case(kind="symmetric", rate=rate), images, seed=seed).tobytes()
        for rate in (0.2, 0.21)
        for seed in (0, 1, 0)
    ]
    assert len(set(drawn)) == 4


def _names(images: Images, **arguments: Any) -> list[str]:
    defaults = {"kinds": None, "rates": [0.1], "variants": ["scratch"], "folds": [1], "drop_share": 0.1}
    return [case.name for case in iter_cases(argparse.Namespace(**{**defaults, **arguments}), images)]


def test_all_kinds_are_planted_unless_labels_are_given() -> None:
    images = _images()
    audited = dataclasses.replace(images, data_labels=images.truth)
    kinds = ("symmetric", "pair", "instance")
    assert _names(images, rates=[0.1, 0.2]) == [
        f"{kind}-{rate}-scratch-folds1" for kind in kinds for rate in (0.1, 0.2)
    ]
    assert _names(images, kinds=["instance"]) == ["instance-0.1-scratch-folds1"]
    assert _names(audited) == ["given-scratch-folds1"]
    assert _names(audited, kinds=["symmetric"], rates=[0.3]) == ["given-scratch-folds1", "symmetric-0.3-scratch-folds1"]
    assert _names(images, kinds=["pair", "clean"], rates=[0.1, 0.2]) == [
        f"{name}-scratch-folds1" for name in ("clean", "pair-0.1", "pair-0.2")
    ]


def test_clean_labels_are_the_true_ones() -> None:
    images = _images()
    np.testing.assert_array_equal(make_labels(Case(kind="clean"), images, seed=0), images.truth)


def test_every_audit_is_done_by_every_variant_and_number_of_folds() -> None:
    names = _names(_images(), kinds=["symmetric"], rates=[0.2], variants=["scratch", "frozen"], folds=[1, 5])
    assert names == [f"symmetric-0.2-{variant}-folds{folds}" for variant in ("scratch", "frozen") for folds in (1, 5)]


def test_a_label_file_and_prepared_labels_are_audited_both_ways(tmp_path: Path) -> None:
    file = _csv(tmp_path, "train/ash/00000.png,birch\n")
    own = _load(tmp_path).truth
    changed = own.copy()
    changed[0] = NAMES.index("birch")
    annotated, corrected = _load(tmp_path, labels=file), _load(tmp_path, truth=file)
    for images, given, truth in ((annotated, changed, own), (corrected, own, changed)):
        assert images.data_labels is not None
        np.testing.assert_array_equal(images.data_labels, given)
        np.testing.assert_array_equal(images.truth, truth)


def test_labels_that_prepare_planted_are_audited_against_true_ones(tmp_path: Path) -> None:
    own = _load(tmp_path).truth
    data = DataPaths(root=tmp_path)
    say_planted(data, {0: int(own[0] + 1) % 4})
    defaults = {"data": tmp_path, "labels": None, "truth": None, "images": None}
    images = load_images_and_truth(argparse.Namespace(**defaults), load_prepared(data, folder=None))
    assert images.data_labels is not None
    np.testing.assert_array_equal(images.data_labels, own)
    assert np.flatnonzero(images.truth != own).tolist() == [0]


def test_a_file_without_an_error_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        _load(tmp_path, labels=_csv(tmp_path, "train/ash/00000.png,ash\n"))
    assert refused.value.key == str(tmp_path / "labels.csv")


def test_some_images_are_the_same_each_time_and_balanced(tmp_path: Path) -> None:
    everything, some, again = _load(tmp_path), _load(tmp_path, images=12), _load(tmp_path, images=12)
    assert everything.mask.all()
    np.testing.assert_array_equal(some.mask, again.mask)
    np.testing.assert_array_equal(some.truth, everything.truth[some.mask])
    assert np.bincount(some.truth).tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("count", [1, 41])
def test_a_number_of_images_that_cannot_be_drawn_is_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(InputError) as refused:
        _load(tmp_path, images=count)
    assert refused.value.key == "--images"


def test_a_case_has_its_labels_parameters_and_prepared_files(tmp_path: Path) -> None:
    images, base, folder = _load(tmp_path / "data"), DataPaths(root=tmp_path / "data"), tmp_path / "case"
    labels = (images.truth + 1) % len(NAMES)
    params = load_params(write_params(tmp_path, filter={"drop_fraction": 0.125}))
    case = Case(kind="symmetric", rate=0.1, folds=3)
    own = case_params(params, case, steps=47, weights=None)
    assert not is_complete(folder, case, own, None)
    make_folder(folder, case, base, labels=labels, truth=images.truth, class_names=NAMES, params=own, weights=None)
    assert is_complete(folder, case, own, None)
    made, data = load_params(folder / "params.yaml"), DataPaths(root=folder / "data")
    finetune = made.finetune
    assert (finetune.budget.steps, finetune.schedule.model_dump()["warmup"]["steps"], finetune.folds) == (47, 4, 3)
    assert (finetune.schedule.name, finetune.weights, finetune.trainable) == ("cosine", "none", "all")
    assert (made.filter, made.reduce, made.extract) == (params.filter, params.reduce, params.extract)
    loaded, manifest = load_prepared(data, folder=None), read_parquet(data.manifest("train"))
    np.testing.assert_array_equal(loaded.train.labels, labels)
    assert manifest["label_name"].to_pylist() == [NAMES[label] for label in labels]
    unchanged = [name for name in manifest.column_names if not name.startswith("label")]
    assert manifest.select(unchanged).equals(read_parquet(base.manifest("train")).select(unchanged))
    for file in ("train.npy", "test.npy", "test.parquet", "metrics.json"):
        assert (folder / "data/prepare" / file).samefile(tmp_path / "data/prepare" / file)
    with pytest.raises(InputError) as refused:
        is_complete(folder, case, case_params(params, case, steps=48, weights=None), None)
    assert "steps" in str(refused.value)
    assert refused.value.key == str(folder / "case.json")


def test_a_schedule_without_durations_is_that_of_the_file(tmp_path: Path) -> None:
    schedule = {"name": "one_cycle", "rise": 0.2, "initial_factor": 0.0}
    params = load_params(write_params(tmp_path, finetune={"schedule": schedule}))
    made = case_params(params, Case(kind="given"), steps=47, weights=None)
    assert made["finetune"]["schedule"] == schedule
    assert made["finetune"]["budget"] == {"steps": 47}


def test_networks_that_share_the_minutes_are_counted() -> None:
    kinds = {"scratch": 1, "two_rounds": 2, "averaged": 2, "half": 2, "half_again": 2, "kept": 2}
    assert {name: Case(kind="given", variant=name).n_networks for name in kinds} == kinds  # type: ignore[arg-type]
    assert Case(kind="given", folds=5).n_networks == 5
    both = [Case(kind="given", variant=variant) for variant in ("two_rounds", "averaged")]
    assert both[0].parts == ("given-half-folds1", "given-kept-folds1")
    assert both[1].parts == ("given-half-folds1", "given-half_again-folds1")


def test_a_frozen_extractor_starts_from_the_file_with_its_budget(tmp_path: Path) -> None:
    params = load_params(write_params(tmp_path))
    weights = tmp_path / "weights.pth"
    made = check_params(
        case_params(params, Case(kind="given", variant="frozen"), steps=None, weights=weights), source="made"
    )
    assert (made.finetune.trainable, made.finetune.weights) == ("head", str(weights))
    assert (made.finetune.budget, made.finetune.schedule) == (params.finetune.budget, params.finetune.schedule)


def test_some_images_are_prepared_as_if_there_were_no_others(tmp_path: Path) -> None:
    everything, part = write_project(tmp_path), DataPaths(root=tmp_path / "part")
    whole = load_prepared(everything, folder=None)
    arguments = argparse.Namespace(data=everything.root, labels=None, truth=None, images=12)
    some = load_images_and_truth(arguments, whole)
    write_subset(everything, part, some.mask)
    loaded = load_prepared(part, folder=None)
    np.testing.assert_array_equal(loaded.train.images, whole.train.images[some.mask])
    np.testing.assert_array_equal(loaded.train.labels, some.truth)
    np.testing.assert_array_equal(loaded.test.images, whole.test.images)
