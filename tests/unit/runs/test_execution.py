"""The images of a study, shared by its runs."""

import weakref
from dataclasses import replace

import torch

from pipeline.datasets.resident import ResidentImages
from pipeline.runs.execution import LoadedSplits
from pipeline.training.settings import TrainSettings
from tests.fixtures.training import NAMES, TINY, bright_images

_CPU = torch.device("cpu")


def _on_device(splits: LoadedSplits, settings: TrainSettings, *, training: bool) -> ResidentImages:
    images = splits.on_device(settings, training=training, device=_CPU)
    assert isinstance(images, ResidentImages)
    return images


def test_one_format_of_each_split_is_in_memory_at_a_time() -> None:
    (train, _), (test, test_labels) = bright_images(12), bright_images(8, seed=1)
    splits = LoadedSplits(train_images=train, test_images=test, test_labels=test_labels, class_names=NAMES)
    other = replace(TINY, crop_padding=3, flip=False)
    first = _on_device(splits, TINY, training=True)
    evaluated = _on_device(splits, TINY, training=False)
    assert _on_device(splits, replace(TINY, seed=9), training=True)._pixels is first._pixels
    # Augmentation is of training alone.
    assert _on_device(splits, other, training=False)._pixels is evaluated._pixels
    gone = weakref.ref(first._pixels)
    del first
    _on_device(splits, other, training=True)
    assert gone() is None
    assert _on_device(splits, TINY, training=False)._pixels is evaluated._pixels
