"""Stage `finetune`: train one extractor on all training images, or one network per fold on all images but the fold."""

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import distributed
from pipeline.artifacts.files import remove_leftovers, write_array, write_json
from pipeline.artifacts.metrics import write_dynamics
from pipeline.artifacts.prepared import PreparedData, load_prepared, prepared_digest
from pipeline.artifacts.provenance import sha256_of_file, write_provenance
from pipeline.artifacts.tables import read_parquet
from pipeline.config.extractors import base_architecture, replicate_number
from pipeline.config.finetune import FinetuneConfig
from pipeline.datasets.splits import assign_folds
from pipeline.distributed import World
from pipeline.energy import UNKNOWN_ENERGY
from pipeline.errors import InputError
from pipeline.features.extract import features_cache_key
from pipeline.features.trained import TrainedExtractor, extractor_metrics, mean_confidence, mean_dynamics
from pipeline.models import full_name, is_timm
from pipeline.models.network import Network
from pipeline.models.timm_networks import timm_format
from pipeline.processes import check_space
from pipeline.runs.folds import BYTES_PER_IMAGE, CachedNetwork, FoldStore, NetworkCache, train_folds
from pipeline.stages.harness import StageContext
from pipeline.stages.parallel import run_parallel_stage
from pipeline.training.checkpointing import STALE_AFTER_S, remove_stale_checkpoints
from pipeline.training.effective_settings import comm_config_from, effective_settings, launch_plan
from pipeline.training.evaluation import Evaluation, evaluate, load_images, rank_rows
from pipeline.training.loop import TrainData
from pipeline.training.pretrained import pretrained_record, weight_initializer
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import DatasetInfo, GridPoint, TrainSettings
from pipeline.training.state import IMAGENET_MEAN, IMAGENET_STD
from pipeline.training.weights import Resizing, check_weights_path, save_fold_networks, save_trained, weight_bytes


def finetune(context: StageContext, world: World) -> None:
    """Train a network or fit a head per fold, evaluate each on the test split once, and write the stage's files."""
    config, name = context.params.finetune, context.item_name
    data = load_prepared(context.data, folder=context.image_folder)
    folds = _folds(context, data)
    train_masks = [folds != fold for fold in range(config.folds)] if config.folds > 1 else [folds == 0]
    if world.is_main:
        check_space(context.data.extractor(name).parent, _n_bytes(context, data))
    train_networks = _train_all if config.trainable == "all" else _fit_heads
    networks: list[TrainedExtractor] = []
    results: list[Evaluation] = []
    test = None
    labels = torch.from_numpy(data.test.labels).to(world.device)
    for trained in train_networks(context, world, data, train_masks):
        test = test or load_images(data.test.source, trained.settings, training=False, device=world.device)
        results.append(evaluate(trained.model, test, labels, batch_size=config.eval_batch_size, world=world))
        _check_finite(results[-1].loss, config.learning_rate, name)
        networks.append(dataclasses.replace(trained, model=trained.model.cpu()))
    if not world.is_main:
        return
    path, settings = context.data.extractor(name), networks[0].settings
    remove_leftovers(path.parent)
    resizing: Resizing = "center_crop" if data.test.files is not None else "square"
    if config.folds == 1:
        save_trained(path, networks[0].model, settings, data.class_names, resizing=resizing)
    else:
        models = [trained.model for trained in networks]
        save_fold_networks(path, models, folds, settings, data.class_names, resizing=resizing)
    write_array(context.data.training_confidence(name), mean_confidence(networks))
    dynamics, unknown = mean_dynamics(networks), np.full(len(folds), np.nan, dtype=np.float32)
    margin, forgetting = (dynamics.margin, dynamics.forgetting) if dynamics else (unknown, unknown)
    write_dynamics(context.data.training_dynamics(name), margin, forgetting)
    metrics = extractor_metrics(config, data, networks, results)
    network = base_architecture(name)
    if is_timm(network):
        metrics["pretrained"] = pretrained_record(config.weights, network, config.revisions)
    write_json(context.data.finetune_metrics(name), metrics)
    write_provenance(
        context.data.provenance("finetune", name),
        stage=context.name,
        parameters=config.model_dump(mode="json"),
        inputs=[context.data.images("train"), context.data.manifest("train")],
        outputs=[
            path,
            context.data.training_confidence(name),
            context.data.training_dynamics(name),
            context.data.finetune_metrics(name),
        ],
    )
    remove_stale_checkpoints(context.work.checkpoints(context.name), max_age_s=STALE_AFTER_S)
    NetworkCache(context.work.file_cache(context.name)).clear(max_age_s=STALE_AFTER_S)
    top1 = np.mean([result.top1 for result in results])
    context.log.info(f"{name}: top-1 {top1:.4f} on the {len(data.test.labels)} test images")


def _folds(context: StageContext, data: PreparedData) -> NDArray[np.int32]:
    """Return the fold (N,) of each training image; all 0 without folds.

    Raises:
        InputError: a class has fewer training images than there are folds, or copies leave a fold without images or a
            class in one fold.
    """
    config, labels = context.params.finetune, data.train.labels
    if config.folds == 1:
        return np.zeros(len(labels), dtype=np.int32)
    counts = np.bincount(labels, minlength=len(data.class_names))
    rarest = int(np.where(counts == 0, len(labels), counts).argmin())
    if counts[rarest] < config.folds:
        raise InputError(
            f"finetune.folds: {config.folds}, but class {data.class_names[rarest]} has {counts[rarest]} training "
            f"images, so that a fold would have none; give at most {counts[rarest]}"
        )
    manifest = read_parquet(context.data.manifest("train"), ["path", "sha256"])
    paths, contents = (manifest[name].to_pylist() for name in ("path", "sha256"))
    folds = assign_folds(paths, labels, config.folds, seed=_seed(context), contents=contents)
    if n_empty := config.folds - len(np.unique(folds)):
        raise InputError(
            f"finetune.folds: {config.folds}, but copies of an image share its fold, which leaves {n_empty} empty; "
            f"give at most {config.folds - n_empty}, or remove copies"
        )
    for fold in range(config.folds):
        if len(lost := np.setdiff1d(labels, labels[folds != fold])):
            raise InputError(
                f"finetune.folds: {config.folds}, but copies share a fold, and fold {fold} has all images of class "
                f"{data.class_names[lost[0]]}, which its network would not see; add others, or remove the class"
            )
    return folds


def _n_bytes(context: StageContext, data: PreparedData) -> int:
    """Return the bytes of the networks and of what is kept for each training image, without file headers."""
    config, n = context.params.finetune, len(data.train.labels)
    weights = weight_bytes(_settings(context, data, n))
    return config.folds * weights + BYTES_PER_IMAGE * n


def _seed(context: StageContext) -> int:
    return context.params.finetune.seed + replicate_number(context.item_name)


def _settings(context: StageContext, data: PreparedData, n_train: int) -> TrainSettings:
    config, network = context.params.finetune, base_architecture(context.item_name)
    mean, std = _normalization(config, network, data)
    return effective_settings(
        config,
        DatasetInfo(n_classes=len(data.class_names), image_size=data.image_size, mean=mean, std=std),
        GridPoint(
            network=full_name(network),
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            seed=_seed(context),
        ),
        n_epoch=n_train,
        budget=config.budget,
        skipped=config.trainable == "head",
    )


def _normalization(
    config: FinetuneConfig, network: str, data: PreparedData
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation per channel that images are normalized with, in units of 0 to 1."""
    if is_timm(network):
        return timm_format(network).mean, timm_format(network).std
    return (IMAGENET_MEAN, IMAGENET_STD) if config.normalization == "imagenet" else (data.mean, data.std)


def _train_all(
    context: StageContext, world: World, data: PreparedData, train_masks: Sequence[NDArray[np.bool_]]
) -> Iterator[TrainedExtractor]:
    """Train each network by the recipe, on the rows of its mask (N,).

    Raises:
        InputError: the batch is larger than a fold's training set, or a loss is not finite.
    """
    config = context.params.finetune
    sizes = [int(rows.sum()) for rows in train_masks]
    if config.batch_size > min(sizes):
        where = "training images" if config.folds == 1 else f"training images outside one of {config.folds} folds"
        raise InputError(f"finetune.batch_size: {config.batch_size}, but there are {min(sizes)} {where}; give no more")
    settings = [_settings(context, data, size) for size in sizes]
    images = load_images(data.train.source, settings[0], training=True, device=world.device)
    labels = torch.from_numpy(data.train.labels).to(world.device)
    runs = train_folds(
        settings,
        [TrainData(images, labels, rows) for rows in train_masks],
        store=FoldStore(
            checkpoints=context.work.checkpoints(context.name),
            cache=NetworkCache(context.work.file_cache(context.name)),
            interval=config.checkpoint,
            data_digest=distributed.broadcast_object(_digest(context) if world.is_main else ""),
        ),
        options=RunOptions(title=context.name, micro_batch=config.micro_batch, comm=comm_config_from(config)),
        initialize=_weight_initializer(context, world),
        world=world,
        log=context.log,
    )
    for fold_settings, size, run in zip(settings, sizes, runs, strict=True):
        _check_finite(run.train_loss, config.learning_rate, context.item_name, run.divergence)
        context.images.append(fold_settings.batch_sizes.examples(fold_settings.steps))
        context.earlier_seconds.append(run.earlier_seconds)
        if run.resumed:
            context.extra_joules.append(UNKNOWN_ENERGY)
        yield TrainedExtractor(
            model=run.model, settings=fold_settings, n_train=size, train_loss=run.train_loss,
            confidence=run.confidence, dynamics=run.dynamics,
        )  # fmt: skip


def _fit_heads(
    context: StageContext, world: World, data: PreparedData, train_masks: Sequence[NDArray[np.bool_]]
) -> Iterator[TrainedExtractor]:
    """Fit a head for each mask (N,), on one pretrained backbone that stays frozen.

    Raises:
        InputError: a class has no training image, or there is one class only.
    """
    from pipeline.features.frozen import fit_frozen_networks  # scikit-learn takes a second to import

    config, n, labels = context.params.finetune, len(data.train.labels), data.train.labels
    counts = np.bincount(labels, minlength=len(data.class_names))
    if counts.min() == 0 or len(counts) < 2:
        raise InputError(
            "finetune.trainable: head needs training images of every class, and two classes; the counts are "
            f"{counts.tolist()}; set trainable: all, or add images"
        )
    settings = _settings(context, data, n)
    keys = _head_keys(context, settings, train_masks, world) if world.is_main else [""] * len(train_masks)
    cache = NetworkCache(context.work.file_cache(context.name))
    cached = distributed.broadcast_object(_cached_heads(cache, keys) if world.is_main else [])
    context.images.append(n)
    if cached:
        context.log.info(f"{context.name}: heads were fitted before and are reused")
        context.extra_joules.append(UNKNOWN_ENERGY)
        # All heads share one extraction of features, so their times overlap.
        context.earlier_seconds.append(max(network.seconds for network in cached))
        for rows, network in zip(train_masks, cached, strict=True):
            yield _head_extractor(network, settings, rows, world)
        return
    if world.is_main:
        cache.check_space(keys, settings, n)
    start = time.monotonic()
    initialize = _weight_initializer(context, world)
    assert initialize is not None, "the configuration requires weights"
    with context.log.progress(context.name, len(rank_rows(n, world)), "images") as progress:
        fitted = fit_frozen_networks(
            settings,
            initialize,
            data.train.source,
            labels,
            train_masks,
            batch_size=config.eval_batch_size,
            world=world,
            progress=progress,
        )
        for number, (rows, (model, head)) in enumerate(zip(train_masks, fitted, strict=True)):
            if not head.converged:
                context.log.info(f"the head of fold {number} stopped after {head.iterations} iterations, unconverged")
            fitted_head = CachedNetwork(
                state=model.state_dict(), train_loss=head.train_loss, seconds=time.monotonic() - start,
                confidence=np.full(n, np.nan, dtype=np.float32),  # a head is fitted, not trained step by step
            )  # fmt: skip
            if world.is_main:
                cache.put(keys[number], fitted_head, steps=0)
            yield _head_extractor(fitted_head, settings, rows, world)


def _cached_heads(cache: NetworkCache, keys: Sequence[str]) -> list[CachedNetwork]:
    """Return all heads, or none if any is missing."""
    cached = [network for key in keys if (network := cache.get(key))]
    return cached if len(cached) == len(keys) else []


def _head_extractor(
    head: CachedNetwork, settings: TrainSettings, rows: NDArray[np.bool_], world: World
) -> TrainedExtractor:
    return TrainedExtractor(
        model=head.model(settings, world.device), settings=settings, n_train=int(rows.sum()),
        train_loss=head.train_loss, confidence=head.confidence, dynamics=None,
    )  # fmt: skip


def _head_keys(
    context: StageContext, settings: TrainSettings, train_masks: Sequence[NDArray[np.bool_]], world: World
) -> list[str]:
    """Return a cache key per mask: a digest of everything that determines the bits of a head on a frozen backbone."""
    config = context.params.finetune
    common = {
        "network": [settings.network, settings.stem, settings.n_classes, settings.seed],
        "format": dataclasses.asdict(settings.format),
        "batch_size": config.eval_batch_size,
        "data": _digest(context),
    }
    digests = [hashlib.sha256(np.packbits(rows).tobytes()).hexdigest() for rows in train_masks]
    return [
        features_cache_key({**common, "members": digest}, module="pipeline.features.frozen", world=world)
        for digest in digests
    ]


def _digest(context: StageContext) -> str:
    """Return the digests of the prepared data and of the initial weights."""
    config, network = context.params.finetune, base_architecture(context.item_name)
    path = Path(config.weights.replace("{network}", network))
    if config.weights == "pretrained":
        # A commit fixes the content.
        start = f"hub {config.revisions.get(network)}" if is_timm(network) else "imagenet"
    elif config.weights not in ("none", "imagenet") and path.is_file():
        check_weights_path(path)
        start = sha256_of_file(path)
    else:
        start = config.weights
    return f"{prepared_digest(context.data)} {start}"


def _weight_initializer(context: StageContext, world: World) -> Callable[[Network], None] | None:
    """Return the initializer of the weights; rank 0 downloads them first, and the other ranks read the cache."""
    config, network = context.params.finetune, base_architecture(context.item_name)
    if not world.is_main:
        distributed.barrier()
    initialize = weight_initializer(config.weights, network, config.revisions)
    if world.is_main:
        distributed.barrier()
    return initialize


def _check_finite(loss: float, rate: float, network: str, where: str | None = "after the last step") -> None:
    if not math.isfinite(loss):
        raise InputError(f"finetune.learning_rate: {rate} makes the loss of {network} infinite {where}; lower it")


def main() -> None:
    """Run the stage on the process's arguments and exit: `python -m pipeline.stages.finetune --network NAME`."""
    run_parallel_stage(
        "finetune",
        finetune,
        item="network",
        plan=lambda context: launch_plan(context.params.finetune),
    )


if __name__ == "__main__":
    main()
