"""params.yaml and the presets filter as the paper does: PCA, joint t-SNE, DBSCAN by class; four presets are exempt."""

from pathlib import Path

import pytest

from pipeline.config.batch_sizes import known_sizes
from pipeline.config.extractors import is_timm
from pipeline.config.params import load_params
from pipeline.models.timm_networks import timm_format
from tests.fixtures.source_tree import ROOT

_ALL = [ROOT / "params.yaml", *sorted((ROOT / "presets").glob("*.yaml"))]
# They find wrong labels, and repeat no paper.
_AUDIT, _OWN_IMAGES, _LAW, _PLANTED = (
    ROOT / "presets" / f"{name}.yaml" for name in ("audit", "own-images", "law", "planted-noise")
)
_FILES = [path for path in _ALL if path not in (_AUDIT, _OWN_IMAGES, _LAW, _PLANTED)]

each_file = pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)


def test_the_presets_named_after_papers_and_cifar_are_among_them() -> None:
    names = {path.stem for path in _FILES}
    assert names >= {"params", "digits", "paper", "paper-small", "mccord"}
    assert names >= {"cifar10", "cifar10-few-steps", "cifar10-tuning"}


@each_file
def test_every_file_filters_as_the_paper_does(path: Path) -> None:
    params = load_params(path)
    assert params.reduce.pca is not None
    assert params.reduce.tsne is not None
    assert params.filter.scorer.model_dump() == {"name": "dbscan", "space": "embedding", "min_samples": 5}
    assert params.filter.allocation == "overall"


def test_the_first_run_has_three_arms_six_seeds_two_batch_sizes() -> None:
    params = load_params(ROOT / "params.yaml")
    noise = params.prepare.plant_label_noise
    assert noise is not None
    assert (noise.fraction, noise.kind) == (0.1, "symmetric")
    (study,) = params.studies.values()
    assert set(study.arms) == {"full", "filtered", "random"}
    assert len(study.seeds) >= 6
    assert len(study.batch_sizes) >= 2


def test_the_audit_preset_trains_and_predicts_by_its_network_alone() -> None:
    params = load_params(_AUDIT)
    assert params.networks == ("resnet9",)
    assert params.finetune.weights == "none"
    assert params.filter.scorer.name == "label_odds"
    # A mirrored image is a sample of the training, so it may be one of the evaluation.
    assert params.extract.flip_tta == params.finetune.augmentation.flip
    (study,) = params.studies.values()
    assert study.models == ("resnet9",)
    assert len(study.seeds) >= 6


def test_planted_noise_has_network_and_recipe_of_the_audit_preset() -> None:
    audit, planted = load_params(_AUDIT), load_params(_PLANTED)
    budget = {"budget": audit.finetune.budget}
    assert planted.finetune.model_copy(update=budget) == audit.finetune
    assert planted.train == audit.train
    assert (planted.extract, planted.networks) == (audit.extract, audit.networks)
    assert planted.filter.scorer == audit.filter.scorer
    assert planted.prepare.plant_label_noise is not None
    assert planted.prepare.plant_label_noise.fraction == planted.filter.drop_fraction
    (study,) = planted.studies.values()
    assert len(study.seeds) == 6
    assert study.budget == planted.finetune.budget


def test_own_images_are_scored_by_out_of_fold_probes() -> None:
    params = load_params(_OWN_IMAGES)
    assert params.prepare.dataset == "image_folder"
    (network,) = params.networks
    assert is_timm(network)
    assert params.finetune.trainable == "head"
    assert params.finetune.folds > 1
    # Estimates in sample are too low.
    assert params.filter.drop_fraction == "estimated"
    assert params.filter.scorer.name == "smoothed_confidence"
    assert params.prepare.image_size == timm_format(network).input_size
    (study,) = params.studies.values()
    assert set(study.arms) == {"full", "filtered", "random"}
    assert len(study.seeds) >= 6


def test_own_images_have_small_batches_and_are_augmented() -> None:
    params, digits = load_params(_OWN_IMAGES), load_params(ROOT / "params.yaml")
    (study,) = params.studies.values()
    n_train = 200 - int(200 * (params.prepare.test_size or 0))
    assert max(known_sizes(study.batch_sizes)) <= n_train / 2
    assert params.train.augmentation.flip
    assert not digits.train.augmentation.flip
    # A shift by the same fraction of the side as the 4 of 32 pixels that are usual for CIFAR-10, or less.
    assert 0 < params.train.augmentation.crop_padding <= params.prepare.image_size / 8


@pytest.mark.parametrize(
    "path",
    [path for path in _ALL if path.stem not in ("params", "digits", "law", "planted-noise")],
    ids=lambda p: p.stem,
)
def test_no_other_preset_changes_labels(path: Path) -> None:
    assert load_params(path).prepare.plant_label_noise is None
