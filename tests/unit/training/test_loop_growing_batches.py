"""A run whose batch grows: each step has the images, gradients and records of its batch size."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.batching import SampleStream, merge_micro_batches, worker_slices
from pipeline.durations import BatchSizes, BatchStage
from pipeline.training.evaluation import load_images
from pipeline.training.noise_scale import NoiseSample
from tests.fixtures.loop import N, train_bright
from tests.fixtures.slow import quick_first
from tests.fixtures.training import ALONE, TINY, bright_images, build_float64, distance, parameters_of

_STAGES = (BatchStage(batch_size=8, until_step=2), BatchStage(batch_size=12, until_step=5))
GROWING = replace(
    TINY, network="small_cnn", steps=8, simulated_workers=2, batch_stages=_STAGES, batch_lr_scaling="sqrt",
    warmup_steps=3, weight_decay=0.0,
)  # fmt: skip
"""Eight steps of 8, 8, 12, 12, 12, 20, 20 and 20 of 60 images, which are 1.9 epochs."""
_SIZES = [8, 8, 12, 12, 12, 20, 20, 20]


def _plain() -> Tensor:
    """The weights after torch's own loop over consecutive slices of the stream, in float64."""
    pixels, labels = bright_images(N)
    images = load_images(pixels, GROWING, training=True, device=ALONE.device)
    order = SampleStream(np.ones(N, dtype=np.bool_), GROWING.seed).samples(0, sum(_SIZES))
    model = build_float64(GROWING.network, GROWING.n_classes, stem=GROWING.stem, seed=GROWING.seed).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True)
    for step, (end, size) in enumerate(zip(itertools.accumulate(_SIZES), _SIZES, strict=True)):
        ids, epochs = (values[end - size : end] for values in order)
        optimizer.param_groups[0]["lr"] = GROWING.lr_at(step)
        optimizer.zero_grad()
        logits, targets = model(images.training_batch(ids, epochs)), torch.from_numpy(labels[ids])
        F.cross_entropy(logits, targets, label_smoothing=GROWING.label_smoothing).backward()
        optimizer.step()
    return parameters_of(model)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("reduction", ["ddp", "exact"])
@pytest.mark.parametrize("micro_batch", quick_first(1, [7, "auto"]))
def test_steps_are_those_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch, reduction: Any, micro_batch: Any) -> None:
    """The reference knows no dropout keys, so both go without."""
    monkeypatch.setattr("pipeline.models.layers.KeyedDropout.forward", lambda _, values: values)
    settings = replace(GROWING, reduction=reduction, bn_group=3)
    run = train_bright(settings, micro_batch=micro_batch if reduction == "ddp" else "auto")
    assert distance(parameters_of(run.model), _plain()) <= (1e-12 if reduction == "ddp" else 1e-11)


def test_records_count_the_images_of_each_step() -> None:
    run = train_bright(GROWING)
    done = list(itertools.accumulate(_SIZES))
    assert [record.step for record in run.history] == list(range(1, 9))
    assert [record.examples for record in run.history] == done
    assert [record.epoch for record in run.history] == pytest.approx([images / N for images in done])
    assert [record.lr for record in run.history] == [GROWING.lr_at(step) for step in range(8)]


@pytest.mark.usefixtures("in_float64")
def test_losses_are_means_over_the_images_of_each_record() -> None:
    """With a rate of almost nothing, all passes over all images have the same mean loss.

    To half of the digits of float64: BatchNorm of 10 images that are much alike enlarges rounding.
    """
    still = replace(
        GROWING, network="resnet18", simulated_workers=1, learning_rate=1e-16, flip=False, crop_padding=0, steps=8,
        batch_size=20, batch_stages=(BatchStage(batch_size=10, until_step=4),),
    )  # fmt: skip
    losses = [record.train_loss for record in train_bright(still, members=np.arange(N) < 10).history]
    assert losses == pytest.approx([losses[0]] * 8, rel=2**-26)


def test_noise_is_sampled_at_each_steps_own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    samples: list[NoiseSample] = []
    monkeypatch.setattr("pipeline.training.loop.estimate_noise_scale", samples.extend)
    train_bright(replace(GROWING, noise_scale_steps=1))
    assert [(sample.small_batch, sample.big_batch) for sample in samples] == [(size / 2, size) for size in _SIZES]


@pytest.mark.slow
def test_a_pass_holds_the_largest_group_of_any_stage() -> None:
    """Groups of about 4: two of 5 in a share of 10, but one of 7 in a share of 7."""
    settings = replace(GROWING, network="resnet18", batch_stages=(BatchStage(batch_size=14, until_step=2),), bn_group=4)
    groups = {size: worker_slices(size, 2, 4)[0].group_sizes for size in (14, 20)}
    assert groups == {14: (7,), 20: (5, 5)}
    run = train_bright(settings, micro_batch=7)
    assert run.micro_batch == 7
    assert [part.size for part in merge_micro_batches(worker_slices(20, 2, 4), run.micro_batch)] == [5, 5, 5, 5]


@pytest.mark.parametrize("reduction", quick_first(1, ["ddp", "exact"]))
def test_a_stage_of_its_own_is_the_run_that_begins_with_it(reduction: Any) -> None:
    """Until the batch grows, the run has the bits of one that always has the smaller batch."""
    still = replace(GROWING, network="resnet18", schedule="constant", warmup_steps=0, batch_lr_scaling=None)
    growing = train_bright(replace(still, reduction=reduction, steps=3, batch_stages=_STAGES[:1], batch_size=20))
    small = train_bright(replace(still, reduction=reduction, steps=2, batch_stages=(), batch_size=8))
    assert growing.history[:2] == small.history


def test_sizes_of_a_run() -> None:
    assert GROWING.batch_sizes == BatchSizes(final=20, stages=_STAGES)
    assert [GROWING.batch_sizes.size_at(step) for step in range(8)] == _SIZES
