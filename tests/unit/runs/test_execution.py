"""The images of a study, shared by its runs."""

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.datasets.resident import ResidentImages
from pipeline.run_log import RunLog
from pipeline.runs import execution
from pipeline.runs.arm_rows import TrainRows
from pipeline.runs.execution import LoadedSplits, execute_run
from pipeline.runs.grid import RunSpec
from pipeline.training.evaluation import load_images
from pipeline.training.loop import train
from pipeline.training.settings import TrainSettings
from tests.fixtures.training import ALONE, NAMES, TINY, bright_images

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


def test_both_splits_are_loaded_once_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first run that measures the memory without the test images would choose another micro-batch than the second."""
    events = list[str]()

    def loading(*args: Any, training: bool, **options: Any) -> Any:
        events.append("training images" if training else "test images")
        return load_images(*args, training=training, **options)

    def training(*args: Any, **options: Any) -> Any:
        events.append("run")
        return train(*args, **options)

    monkeypatch.setattr(execution, "load_images", loading)
    monkeypatch.setattr(execution, "train", training)
    (images, labels), (test, test_labels) = bright_images(24), bright_images(8, seed=1)
    splits = LoadedSplits(train_images=images, test_images=test, test_labels=test_labels, class_names=NAMES)
    settings = replace(TINY, network="small_cnn", steps=1)
    spec = RunSpec(arm="full", filter_network="", learning_rate=0.05, n_train=24, settings=settings)
    rows = TrainRows(mask=np.ones(24, dtype=np.bool_), labels=labels)
    for _ in range(2):
        execute_run(spec, splits, rows, world=ALONE, log=RunLog.silent(), weights=None, eval_batch_size=8)
    assert events == ["training images", "test images", "run", "run"]
