"""The proposed params.yaml is valid and fits any folder: batches, folds, neighbors and splits that exist."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.commands.init.command import NETWORK
from pipeline.commands.init.proposal import FolderSurvey, batch_sizes, default_test_size, propose
from pipeline.config.batch_sizes import known_sizes
from pipeline.config.params import Params
from pipeline.datasets.splits import choose_test_rows, choose_val_rows
from tests.fixtures.source_tree import ROOT

_PRESET = (ROOT / "presets" / "own-images.yaml").read_text(encoding="utf-8")
_REVISION = {"weights": "pretrained", "revisions": {NETWORK: "0" * 40}}


def _survey(counts: list[int], *, short_side: int = 300, split: bool = False, broken: int = 0) -> FolderSurvey:
    test_size = None if split else default_test_size(sum(counts))
    labels = np.repeat(np.arange(len(counts)), counts)
    held_out = choose_test_rows([str(row) for row in range(len(labels))], labels, test_size or 0.2, seed=0)
    return FolderSurvey(
        class_names=tuple(f"class{number}" for number in range(len(counts))),
        train=tuple(np.bincount(labels[~held_out], minlength=len(counts)).tolist()),
        test=tuple(np.bincount(labels[held_out], minlength=len(counts)).tolist()),
        test_size=test_size,
        unreadable={f"{number}.jpg": "damaged" for number in range(broken)},
        duplicates={},
        contradictions=(),
        short_side=short_side,
        description="",
    )


def _propose(survey: FolderSurvey, *, weights: dict[str, Any] | None = _REVISION, gpu: bool = False) -> Params:
    return propose(survey, _PRESET, path="photos", weights=weights, input_size=224, gpu=gpu).params


@given(
    counts=st.lists(st.integers(3, 400), min_size=2, max_size=6),
    short_side=st.integers(1, 6000),
    split=st.booleans(),
    gpu=st.booleans(),
    pretrained=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_a_proposal_fits_its_folder(
    counts: list[int], short_side: int, split: bool, gpu: bool, pretrained: bool
) -> None:
    survey = _survey(counts, short_side=short_side, split=split)
    params = _propose(survey, weights=_REVISION if pretrained else None, gpu=gpu)
    (study,) = params.studies.values()
    assert study.needs == study.possible_needs[0]
    assert study.filter_network == params.networks[0]
    # Even an arm without a fifth of its images has a batch of each size.
    sizes = (*known_sizes(study.batch_sizes), params.finetune.batch_size)
    assert all(2 <= size <= max(2, 0.8 * survey.n_train) for size in sizes)
    assert 1 <= params.finetune.folds <= min(survey.train)
    assert 3 * params.reduce.tsne.perplexity < survey.n_train
    assert params.reduce.n_neighbors < survey.n_train
    assert params.prepare.image_size <= (224 if gpu else 96)
    assert (params.prepare.test_size is None) == split
    # Splits leave images of each class for training, tuning and testing.
    labels = np.repeat(np.arange(len(counts)), survey.train)
    val = choose_val_rows([str(row) for row in range(len(labels))], labels, params.prepare.val_size, seed=0)
    assert (np.bincount(labels[val]) >= 1).all()
    assert (np.bincount(labels[~val]) >= 1).all()
    # The margin is at least what one test image is worth.
    assert params.report.margin >= 100 / survey.n_test


def test_few_photographs_get_frozen_features_many_larger_batches() -> None:
    few, many = _propose(_survey([75] * 4)), _propose(_survey([5000] * 4), gpu=True)
    assert few.networks == many.networks == (NETWORK,)
    assert few.finetune.trainable == "head"
    assert few.finetune.revisions == {NETWORK: "0" * 40}
    assert few.studies["own_images"].batch_sizes == (16, 64)
    assert many.studies["own_images"].batch_sizes == (64, 256)
    assert (few.prepare.test_size, many.prepare.test_size) == (0.2, 0.1)


@pytest.mark.parametrize(
    ("short_side", "gpu", "pixels", "model"),
    [
        (32, False, 32, "resnet9"),
        (3000, False, 96, "resnet18"),
        (3000, True, 224, "resnet18"),
    ],
)
def test_size_and_model_fit_the_images_and_the_machine(short_side: int, gpu: bool, pixels: int, model: str) -> None:
    params = _propose(_survey([50, 50], short_side=short_side), gpu=gpu)
    assert params.prepare.image_size == pixels
    assert params.studies["own_images"].models == (model,)
    # Shifts of a fourteenth of the side, as the preset has.
    assert params.train.augmentation.crop_padding == pixels // 14


def test_neighbors_that_vote_are_fewer_than_a_rare_class_has() -> None:
    params = _propose(_survey([300, 300, 5]))
    assert params.filter.scorer.model_dump() == {"name": "smoothed_confidence", "k": 3}
    assert params.finetune.folds == 4


def test_a_network_from_scratch_scores_by_its_training() -> None:
    params = _propose(_survey([75] * 4, short_side=32), weights=None)
    assert params.networks == ("resnet9",)
    assert (params.finetune.weights, params.finetune.trainable) == ("none", "all")
    assert params.finetune.augmentation.flip
    assert params.filter.scorer.name == "label_odds"
    # In sample an estimated share is too low.
    assert params.filter.drop_fraction == 0.05


def test_broken_files_are_left_out_and_the_text_says_how_many() -> None:
    proposal = propose(
        _survey([30, 30], broken=2), _PRESET, path="photos", weights=_REVISION, input_size=224, gpu=False
    )
    assert proposal.params.prepare.unreadable == "skip"
    assert re.search(r"unreadable: skip +# files of this folder that cannot be read: 2$", proposal.text, re.MULTILINE)
    assert all(len(line) <= 120 for line in proposal.text.splitlines())
    assert "\n\n\n" not in proposal.text


@pytest.mark.parametrize(("n_train", "sizes"), [(4, [2]), (20, [2, 4]), (240, [16, 64]), (100_000, [64, 256])])
def test_batch_sizes(n_train: int, sizes: list[int]) -> None:
    assert batch_sizes(n_train) == sizes
