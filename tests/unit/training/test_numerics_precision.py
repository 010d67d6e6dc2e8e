"""Each precision computes in its own numbers and adds the losses up in single precision."""

from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pipeline.batching import GlobalBatch, worker_slices
from pipeline.config.recipe import Recipe
from pipeline.models import build_network
from pipeline.models.layers import set_batch_context
from pipeline.training.gradients import accumulate_gradients
from pipeline.training.numerics import Precision, autocast, make_scaler
from tests.fixtures.training import NAMES, build_resnet, distance, gradient_of, random_train_loss

_CPU = torch.device("cpu")
_PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_EVERY = pytest.mark.parametrize("precision", _PRECISIONS)
_IDS, _EPOCHS = np.arange(20), np.zeros(20, dtype=np.int64)
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def test_the_parameter_file_has_the_same_names() -> None:
    assert get_args(Recipe.model_fields["precision"].annotation) == _PRECISIONS


@_EVERY
def test_products_are_in_the_wanted_numbers(precision: Precision) -> None:
    with autocast(precision, _CPU):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == _HALF.get(precision, torch.float32)


@_EVERY
def test_the_loss_is_not_added_up_in_half_precision(precision: Precision) -> None:
    train_loss = random_train_loss(20, dtype=torch.float32, precision=precision)
    model = build_network("small_cnn", len(NAMES), stem="imagenet", seed=0).train()
    batch = GlobalBatch(sample_ids=np.arange(20), epochs=np.zeros(20, dtype=np.int64))
    (part,) = worker_slices(20, 1)
    assert train_loss.summed_loss(model, batch, part).dtype == torch.float32


def _gradient(precision: Precision) -> torch.Tensor:
    model = build_resnet().train()
    batch = GlobalBatch(sample_ids=_IDS, epochs=_EPOCHS)
    train_loss = random_train_loss(20, dtype=torch.float32, precision=precision, has_dropout=False)
    accumulate_gradients(model, train_loss, batch, worker_slices(20, 2), world_size=1)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    return gradient_of(model)


def _gradient_of_torch(precision: Precision) -> torch.Tensor:
    """The gradient of a plain loop under `torch.autocast`, over the same two halves of the batch."""
    model = build_resnet().train()
    train_loss = random_train_loss(20, dtype=torch.float32)
    for rows in (slice(0, 10), slice(10, 20)):
        set_batch_context(model, group_sizes=(10,), keys=None)
        with torch.autocast("cpu", dtype=_HALF.get(precision), enabled=precision in _HALF):
            logits = model(train_loss.images.training_batch(_IDS[rows], _EPOCHS[rows]))
        loss = F.cross_entropy(logits.float(), train_loss.labels[rows], reduction="sum")
        (loss * (1 / 20)).backward()
    return gradient_of(model)


@_EVERY
def test_the_gradient_is_that_of_torch_in_the_same_numbers(precision: Precision) -> None:
    assert torch.equal(_gradient(precision), _gradient_of_torch(precision))


@pytest.mark.slow
def test_a_longer_mantissa_is_nearer_to_single_precision() -> None:
    """Of 8 bits in bf16 and 11 in fp16; tf32 is that of a GPU."""
    single = _gradient("fp32")
    errors = {precision: distance(_gradient(precision), single) for precision in _PRECISIONS}
    assert errors["bf16"] > errors["fp16"] > errors["tf32"] == errors["fp32"] == 0


@_EVERY
def test_only_fp16_needs_a_scale(precision: Precision) -> None:
    assert (make_scaler(precision, _CPU) is not None) == (precision == "fp16")
