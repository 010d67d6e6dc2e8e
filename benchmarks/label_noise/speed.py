"""Measure the training speed of the extractor: the loop of the stage `finetune` on a few steps."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.measuring import seconds_of
from pipeline import distributed
from pipeline.artifacts.prepared import load_prepared
from pipeline.config.base import Duration
from pipeline.config.extractors import base_architecture
from pipeline.config.params import Params
from pipeline.paths import DataPaths
from pipeline.run_log import RunLog
from pipeline.training.effective_settings import effective_settings
from pipeline.training.evaluation import load_images
from pipeline.training.loop import TrainData, train
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import DatasetInfo, GridPoint

# Minimum difference of two lengths, so that noise does not dominate.
_MIN_TIMED_S = 1.0


def seconds_per_step(params: Params, data: Path, clock: str) -> float:
    """Return the seconds of one step of `finetune` on the prepared images in `data`, by one process.

    `clock` is "wall", or "cpu" for the processor time of all threads.

    Weights and normalization do not affect the speed: the weights are random, the normalization is the data set's.

    Raises:
        InputError: as the stage.
    """
    config = params.finetune
    prepared = load_prepared(DataPaths(root=data), folder=params.prepare.folder)
    labels = torch.from_numpy(prepared.train.labels)
    settings = effective_settings(
        config,
        DatasetInfo(
            n_classes=len(prepared.class_names), image_size=prepared.image_size, mean=prepared.mean, std=prepared.std
        ),
        GridPoint(
            network=base_architecture(params.networks[0]),
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            seed=config.seed,
        ),
        n_epoch=len(labels),
        budget=Duration(steps=1),
        skipped=True,
    )
    with distributed.join_process_group(config.threads_per_worker) as world:
        images = load_images(prepared.train.source, settings, training=True, device=world.device)
        targets, train_mask = labels.to(world.device), np.ones(len(labels), dtype=np.bool_)

        def seconds(steps: int) -> float:
            short = replace(settings, steps=steps, schedule="constant", schedule_options={}, warmup_steps=0)
            return (cpu_seconds_of if clock == "cpu" else seconds_of)(
                lambda: train(
                    short,
                    TrainData(images, targets, train_mask),
                    world=world,
                    log=RunLog.silent(),
                    options=RunOptions(micro_batch=config.micro_batch),
                )
            )

        return from_two_lengths(seconds)


def cpu_seconds_of(work: Callable[[], object]) -> float:
    """Return the processor time (s) of one call, of all threads of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def from_two_lengths(run: Callable[[int], float]) -> float:
    """Return the seconds per step from runs of two lengths, without the constant cost of a run."""
    run(1)
    steps = 4
    while (extra := run(1 + steps) - run(1)) < _MIN_TIMED_S:
        steps *= 4
    return extra / steps
