"""Each precision computes in its own numbers and adds the losses up in single precision."""

from typing import get_args

import numpy as np
import pytest
import torch

from pipeline.batching import worker_slices
from pipeline.config.recipe import Recipe
from pipeline.models import build_network
from pipeline.training.gradients import GlobalBatch, accumulate_gradients
from pipeline.training.numerics import Precision, autocast, make_scaler
from tests.fixtures.training import NAMES, distance, gradient_of, random_train_loss

_CPU = torch.device("cpu")
_PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_EVERY = pytest.mark.parametrize("precision", _PRECISIONS)
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


@_EVERY
def test_the_gradient_is_near_that_of_single_precision(precision: Precision) -> None:
    """Exactly that of it, or by the mantissa (8 bits of bf16, 11 of fp16) and the pooled maxima that it swaps."""
    batch = GlobalBatch(sample_ids=np.arange(20), epochs=np.zeros(20, dtype=np.int64))

    def gradient(precision: Precision) -> torch.Tensor:
        model = build_network("small_cnn", len(NAMES), stem="imagenet", seed=0).train()
        train_loss = random_train_loss(20, dtype=torch.float32, precision=precision)
        accumulate_gradients(model, train_loss, batch, worker_slices(20, 2), world_size=1)
        assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
        return gradient_of(model)

    error = distance(gradient(precision), gradient("fp32"))
    assert error <= {"bf16": 0.15, "fp16": 0.02}.get(precision, 0)
    assert (error > 0) == (precision in _HALF)


@_EVERY
def test_only_fp16_needs_a_scale(precision: Precision) -> None:
    assert (make_scaler(precision, _CPU) is not None) == (precision == "fp16")
