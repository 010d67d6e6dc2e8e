"""Find the largest batch of a study whose passes fit the memory: powers of two, then bisection.

A size fits if the forward and the backward pass of each rank's share fit at once, next to what the optimizer and the
exchange will hold. On a GPU the passes run, and running out of memory is caught. On a CPU it would end the process, so
the memory that one image needs is measured, and compared with the limit of the container or batch job.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import distributed
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.prepared import PreparedData
from pipeline.batching import GlobalBatch, SampleStream, rank_slices, worker_slices
from pipeline.config.base import Duration
from pipeline.config.batch_sizes import LARGEST, with_found_size
from pipeline.config.params import Params
from pipeline.config.section_checks import check_batch_stages
from pipeline.distributed import CommConfig, World
from pipeline.errors import InputError, OutOfMemory
from pipeline.host_memory import memory_limit
from pipeline.models.layers import has_dropout
from pipeline.paths import DataPaths, WorkPaths
from pipeline.runs.arm_rows import read_decisions
from pipeline.runs.execution import LoadedSplits
from pipeline.training.batch_plan import MemoryProbe, check_ranks
from pipeline.training.effective_settings import comm_config_from, effective_settings
from pipeline.training.gradients import TrainLoss
from pipeline.training.loop import TrainData
from pipeline.training.memory import pass_fits, samples_that_fit
from pipeline.training.run_key import machine_info
from pipeline.training.settings import DatasetInfo, GridPoint, TrainSettings, recorded_settings
from pipeline.training.state import start_state

_PARTS = 16
"""A size is found up to this part of the power of two below it: kernels are fast at multiples of large powers of two,
and memory that is used to its end leaves none for fragments."""


def find_largest(fits: Callable[[int], bool], *, unit: int, least: int, most: int) -> int | None:
    """Return the largest multiple of `unit` from `least` to `most` that fits, up to a sixteenth; None if none fits.

    Args:
        fits: whether a size fits; all that fit are smaller than all that do not.
        unit: divides `least`, which is at most `most`.
    """
    if not fits(least):
        return None
    size = least
    while 2 * size <= most and fits(2 * size):
        size *= 2
    part = unit * max(1, size // unit // _PARTS)
    # The answer is `size + k * part`. `low` is a k that fits. `high` is the first k that cannot be it: it reaches
    # 2 * size, which did not fit, or exceeds `most`. Rounded up.
    low, high = 0, -(-min(size, most - size + 1) // part)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(size + middle * part) else (low, middle)
    return size + low * part


def largest_batch(
    settings: TrainSettings, data: TrainData, *, most: int, limit: int | None, world: World, comm: CommConfig
) -> int:
    """Return the largest batch of these settings, whose batch size does not matter; all ranks call it.

    Args:
        most: images at most.
        limit: bytes that the processes of this machine may use, where they run on its CPU.

    Raises:
        InputError: the processes do not fit the simulated workers, or `most` is too few for them.
        OutOfMemory: the smallest batch does not fit.
    """
    check_ranks(settings, world, comm)
    simulated = settings.simulated_workers
    least = simulated * max(2, settings.bn_group or 0)
    if most < least:
        raise InputError(
            f"batch_sizes: largest is at least {least} images with simulated_workers {simulated} and bn_group "
            f"{settings.bn_group}, and the smallest arm has {most}; lower one of the two"
        )
    state = start_state(settings, world)
    train_loss = TrainLoss(
        images=data.images, labels=data.labels, label_smoothing=settings.label_smoothing, precision=settings.precision,
        seed=settings.seed, has_dropout=has_dropout(state.model),
    )  # fmt: skip
    stream = SampleStream(data.train_mask, settings.seed)

    def fits(size: int) -> bool:
        parts = worker_slices(size, simulated, settings.bn_group)
        slices = rank_slices(parts, rank=world.rank, world_size=world.size)
        batch = GlobalBatch.from_stream(stream, start=0, size=size)
        probe = MemoryProbe(settings, state, train_loss, batch, slices, comm)
        sizes = [part.size for part in slices]
        # Exact sums pass the images of one simulated worker at a time.
        at_once = max(sizes) if settings.reduction == "exact" else sum(sizes)
        if world.device.type != "cuda":
            assert limit is not None, "a CPU needs a limit"
            return not distributed.any_rank(
                at_once > samples_that_fit(limit, probe.bytes_per_sample(world.device), distributed.local_world_size())
            )
        return pass_fits(partial(probe.try_pass, at_once))

    with distributed.float32_arithmetic(tf32=settings.precision == "tf32", fast=settings.fast):
        found = find_largest(fits, unit=simulated, least=least, most=most)
    if found is None:
        raise OutOfMemory(
            f"batch_sizes: largest, but {least} images, the fewest, of {settings.network} do not fit the memory; "
            "choose a smaller network or more memory"
        )
    return found


def with_largest_batch(
    params: Params,
    name: str,
    data: PreparedData,
    *,
    paths: DataPaths,
    work: WorkPaths,
    world: World,
    log: Callable[[str], None],
) -> Params:
    """Return the parameters with a number in place of the study's `largest`; all ranks call it.

    A number that was found under the same conditions is taken from its record. Else it is the smallest of those found
    for the study's networks, at most the images of its smallest arm, and rank 0 records it.

    Raises:
        InputError: on a CPU whose memory has no limit; if a batch schedule does not fit the number; and as
            `largest_batch`.
    """
    study, record = params.studies[name], work.largest_batch(name)
    if LARGEST not in study.batch_sizes:
        return params
    filters = study.filter_networks if set(study.arms) != {"full"} else ()
    kept = [int(read_decisions(paths, data, network, suggestions=False).keep.sum()) for network in filters]
    most = min([len(data.train.labels), *kept])
    recipe = study.effective_recipe(params.train)
    info = DatasetInfo(n_classes=len(data.class_names), image_size=data.image_size, mean=data.mean, std=data.std)
    settings = [
        effective_settings(
            recipe, info, _point(model, study.seeds[0]), n_epoch=most, budget=Duration(steps=1), skipped=True
        )
        for model in study.models
    ]  # fmt: skip
    limit, comm = _limit(world), comm_config_from(recipe)
    digest = _digest(settings, most, limit, world, comm)
    size = distributed.broadcast_object(_recorded(record, digest) if world.is_main else None)
    if size is None:
        splits = LoadedSplits(
            train_images=data.train.source, test_images=data.test.source, test_labels=data.test.labels,
            class_names=data.class_names,
        )  # fmt: skip
        size = min(
            largest_batch(
                one, _train_data(one, splits, data.train.labels, world), most=most, limit=limit, world=world, comm=comm
            )
            for one in settings
        )
        if world.device.type == "cuda":
            torch.cuda.empty_cache()  # processes of `concurrent_runs` train on this GPU next
        if world.is_main:
            write_json(record, {"batch_size": size, "digest": digest})
            log(f"train@{name}: the largest batch is {size}, recorded in {record}")
    # The configuration has checked the stated sizes.
    check_batch_stages(f"studies.{name}.recipe" if study.recipe else "train", size, recipe)
    return with_found_size(params, name, size)


def _point(model: str, seed: int) -> GridPoint:
    return GridPoint(network=model, batch_size=2, learning_rate=1.0, weight_decay=0.0, seed=seed)


def _limit(world: World) -> int | None:
    """Return the bytes of the memory that decides: of the GPU, or the limit of the CPU's."""
    if world.device.type == "cuda":
        return int(torch.cuda.get_device_properties(world.device).total_memory)
    limit = memory_limit()
    if distributed.any_rank(limit is None):
        raise InputError(
            "batch_sizes: largest needs a limit of memory on a CPU, and no container, batch job or ulimit -v sets one: "
            "the number would depend on other programs; give a number"
        )
    return limit


def _digest(settings: Sequence[TrainSettings], most: int, limit: int | None, world: World, comm: CommConfig) -> str:
    """Return a hex digest of the conditions of the search."""
    conditions: dict[str, Any] = {
        "settings": [recorded_settings(one) for one in settings],
        "most": most,
        "limit": limit,
        "processes": world.size,
        "machine": machine_info(world.device),
    }
    if not comm.overlap:  # which takes one more copy of the parameters
        conditions["overlap"] = False
    return hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()


def _recorded(record: Path, digest: str) -> int | None:
    """Return the recorded number if it was found under the conditions of `digest`."""
    if not record.exists():
        return None
    found = read_json(record)
    matches = isinstance(found, dict) and found.get("digest") == digest and isinstance(found.get("batch_size"), int)
    return int(found["batch_size"]) if matches else None


def _train_data(settings: TrainSettings, splits: LoadedSplits, labels: NDArray[np.int64], world: World) -> TrainData:
    images = splits.for_training(settings, device=world.device)
    return TrainData(images, torch.from_numpy(labels).to(world.device), np.ones(len(labels), dtype=np.bool_))
