"""Checks over several sections of params.yaml, after each section alone is valid."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pipeline.config.base import MAX_SEED, Duration, describe_validation_error
from pipeline.config.batch_sizes import LARGEST, stated_sizes
from pipeline.config.extractors import (
    MIN_PIXELS,
    WITHOUT_IMAGENET_WEIGHTS,
    base_architecture,
    is_network_name,
    is_timm,
    replicate_number,
)
from pipeline.config.filter import needs_training, scorer_names
from pipeline.config.optimization import order_conflict
from pipeline.config.prepare import PrepareConfig
from pipeline.config.recipe import Augmentation, Recipe
from pipeline.config.reduce import ReduceConfig, TsneConfig
from pipeline.config.study import Study, TrainConfig
from pipeline.config.torchvision_names import TORCHVISION_PREFIX, torchvision_sides
from pipeline.errors import InputError

if TYPE_CHECKING:
    from pipeline.config.params import Params

MAX_RUNS = 1_000_000
"""Most runs of a study."""
_GRID = ("models", "batch_sizes", "learning_rates", "weight_decays", "seeds")


def check_sections(params: "Params", source: str) -> None:
    """Check what single sections cannot know of each other.

    Raises:
        InputError: naming the key, its value and a fix.
    """
    if isinstance(params.filter.drop_fraction, dict):
        missing = [network for network in params.networks if network not in params.filter.drop_fraction]
        if missing:
            raise InputError(
                f"{source}: filter.drop_fraction: has no entry for {missing[0]}; add it, or give one number for all"
            )
        # An entry may be of a network that `networks` lacks, so that a preset serves several lists.
        if unknown := [name for name in params.filter.drop_fraction if not is_network_name(name)]:
            raise InputError(
                f"{source}: filter.drop_fraction: {unknown[0]} is no network; correct the name, or remove its entry"
            )
    _check_head(f"{source}: filter.scorer", params)
    _check_weights(f"{source}: finetune", params)
    _check_embeddings(f"{source}: reduce", params.reduce)
    _check_recipe(f"{source}: finetune", params.finetune, params.prepare)
    _check_batch(f"{source}: finetune.batch_size", params.finetune.batch_size, params.finetune)
    check_batch_stages(f"{source}: finetune", params.finetune.batch_size, params.finetune)
    _check_budget(f"{source}: finetune", params.finetune, params.finetune.budget)
    _check_replicates(f"{source}: finetune.seed", params.finetune.seed, params.networks)
    _check_replicates(f"{source}: reduce.tsne.random_state", params.reduce.tsne.random_state, params.networks)
    _check_isa(source, params)
    for name, study in params.studies.items():
        _check_study(f"{source}: studies.{name}", study, params, source)
    check_networks(params, source)
    if params.report.target_top1 is not None and not any(study.accuracy_every for study in params.studies.values()):
        raise InputError(
            f"{source}: report.target_top1: {params.report.target_top1:g}, but no study measures accuracy during "
            "training; set accuracy_every in one, or remove the key"
        )
    for name, tuning in params.tuning.items():
        if tuning.study not in params.studies:
            raise InputError(
                f"{source}: tuning.{name}.study: {tuning.study} is not one of studies {list(params.studies)}; choose "
                "one of them"
            )


def _check_study(key: str, study: Study, params: "Params", source: str) -> None:
    _check_size(key, study)
    for network in study.filter_networks:
        if network not in params.networks:
            which = (
                "filter_network" if network == study.filter_network else f"filter_replicates: {study.filter_replicates}"
            )
            raise InputError(
                f"{key}.{which}: {network} is not one of networks "
                f"{list(params.networks)}; add it there or choose one of them"
            )
    try:
        recipe = study.effective_recipe(params.train)
    except ValidationError as error:
        raise InputError(f"{key}.recipe.{describe_validation_error(error, study.recipe, TrainConfig)}") from None
    if study.looks and not {"filtered", params.report.primary} <= set(study.arms):
        raise InputError(
            f"{key}.looks: compare filtered with {params.report.primary} (report.primary), and arms are "
            f"{list(study.arms)}; add the missing arm or remove looks"
        )
    section = f"{key}.recipe" if study.recipe else f"{source}: train"
    _check_recipe(section, recipe, params.prepare)
    for batch in stated_sizes(study.batch_sizes):
        _check_budget(section, recipe, study.budget_at(batch))
        _check_batch(f"{key}.batch_sizes", batch, recipe)
        check_batch_stages(section, batch, recipe)
    _check_largest(f"{key}.batch_sizes", study, recipe)
    _check_equivalent_batch(f"{key}.equivalent_batch", study, params.train)
    for name in ("keep_checkpoints", "accuracy_every"):
        if getattr(study, name) and recipe.post_local_sgd:
            raise InputError(
                f"{key}.{name}: with post_local_sgd each worker has its own weights between averages; remove one of "
                "the two"
            )


def _check_isa(source: str, params: "Params") -> None:
    """Check that all stages have one instruction set: a process cannot change it after its first computation."""
    expected = params.train.isa
    recipes = {f"studies.{name}.recipe": study.recipe.get("isa", expected) for name, study in params.studies.items()}
    for section, isa in {"finetune": params.finetune.isa, **recipes}.items():
        if isa != expected:
            raise InputError(
                f"{source}: {section}.isa: {isa}, but train.isa is {expected}; all stages have the same, so give "
                "finetune.isa and train.isa one value, and no study another"
            )


def _check_size(key: str, study: Study) -> None:
    """Check that the grid can be listed: a file of a few kilobytes can ask for more runs than fit the memory."""
    lists = {name: len(getattr(study, name)) for name in (*_GRID, "arms")}
    n_runs = math.prod(lists.values()) * len(study.filter_networks)
    if n_runs > MAX_RUNS:
        longest = max(lists, key=lambda name: lists[name])
        raise InputError(
            f"{key}.{longest}: {lists[longest]:,} values, in a grid of {n_runs:,} runs; give at most {MAX_RUNS:,} runs"
        )


def _check_largest(key: str, study: Study, recipe: TrainConfig) -> None:
    """Check that `largest` is found as it is trained: by the processes of a run, with the memory to themselves."""
    at_once = recipe.concurrent_runs
    if LARGEST not in study.batch_sizes or at_once == 1:
        return
    if at_once == "auto" and 1 in (recipe.workers, recipe.simulated_workers):
        return  # one process on each GPU
    raise InputError(
        f"{key}: largest fills the memory with one run on all its processes, and concurrent_runs: {at_once} trains "
        "several runs by one process each; set concurrent_runs: 1 in the study's recipe, or give a number"
    )


def _check_equivalent_batch(key: str, study: Study, train: TrainConfig) -> None:
    if study.equivalent_batch is None:
        return
    recipe = study.effective_recipe(train)
    if recipe.batch_schedule is not None:
        raise InputError(f"{key}: tests one batch size against another, and recipe has a batch_schedule; remove one")
    try:
        sizes = study.equivalent_sizes(train)
    except ValueError as error:
        raise InputError(f"{key}.{error}") from None
    for size, smaller in sizes.items():
        _check_batch(f"{key}: {size} with gradient_scale {study.equivalent_batch.gradient_scale:g}", smaller, recipe)


def _check_replicates(key: str, seed: int, networks: Sequence[str]) -> None:
    last = max(networks, key=replicate_number)
    largest = MAX_SEED - replicate_number(last)
    if seed > largest:
        raise InputError(
            f"{key}: {seed} + {replicate_number(last)} for {last} is too large for a seed; give at most {largest}"
        )


def _check_head(key: str, params: "Params") -> None:
    names = scorer_names(params.filter.scorer)
    missing = [name for name in names if needs_training(name, folds=params.finetune.folds)]
    if params.finetune.trainable == "head" and missing:
        folds = "" if needs_training(missing[0], folds=2) else ", or set finetune.folds: 5"
        raise InputError(
            f"{key}: {missing[0]} needs a record of the training, which finetune.trainable: head does not "
            f"make; use smoothed_confidence{folds}"
        )


def _check_weights(section: str, params: "Params") -> None:
    finetune, networks = params.finetune, [base_architecture(network) for network in params.networks]
    of_timm = [network for network in networks if is_timm(network)]
    if finetune.weights == "imagenet" and of_timm:
        raise InputError(
            f"{section}.weights: imagenet are torchvision's weights, and networks has {of_timm[0]}; give pretrained"
        )
    if finetune.weights == "pretrained" and finetune.stem != "imagenet" and len(of_timm) < len(networks):
        raise InputError(
            f"{section}.weights: pretrained weights of ResNets have the 7x7 first layer; set stem: imagenet"
        )
    if unknown := [network for network in finetune.revisions if network not in of_timm]:
        raise InputError(
            f"{section}.revisions: {unknown[0]} is not one of networks {networks}; remove it, or correct its name"
        )


def _check_embeddings(section: str, reduce: ReduceConfig) -> None:
    previous: list[TsneConfig] = []
    for number in range(1 + len(reduce.extra_embeddings)):
        key = f"{section}.extra_embeddings[{number - 1}]"
        try:
            settings = reduce.embedding_settings(number)
        except ValidationError as error:
            raise InputError(
                f"{key}.{describe_validation_error(error, reduce.extra_embeddings[number - 1], TsneConfig)}"
            ) from None
        if settings in previous:
            raise InputError(f"{key}: {reduce.extra_embeddings[number - 1]} repeats an earlier embedding; remove it")
        previous.append(settings)


def _check_recipe(key: str, recipe: Recipe, prepare: PrepareConfig) -> None:
    augmentation, size = recipe.augmentation, prepare.image_size
    if prepare.storage == "files" and augmentation.crop_padding:
        raise InputError(
            f"{key}.augmentation.crop_padding: {augmentation.crop_padding}, but with prepare.storage files crops are "
            "random-resized; remove the key, or set crop_area"
        )
    if prepare.storage == "array" and augmentation.crop_area is not None:
        raise InputError(
            f"{key}.augmentation.crop_area: {augmentation.crop_area:g}, but random-resized crops need images in "
            "files; remove the key, or set prepare.storage: files"
        )
    if augmentation.crop_size is not None and augmentation.crop_size > size:
        raise InputError(
            f"{key}.augmentation.crop_size: {augmentation.crop_size} is larger than prepare.image_size; "
            f"give at most {size}"
        )
    if augmentation.crop_padding >= size:
        raise InputError(
            f"{key}.augmentation.crop_padding: {augmentation.crop_padding} leaves crops that show no image; "
            f"give less than prepare.image_size {size}"
        )
    simulated = recipe.simulated_workers
    if recipe.workers == "auto":
        return
    if recipe.reduction == "exact" and recipe.workers > simulated:
        raise InputError(
            f"{key}.workers: {recipe.workers} processes cannot share simulated_workers {simulated}; use at most "
            f"{simulated}, or auto"
        )
    if recipe.reduction == "ddp" and simulated % recipe.workers:
        valid = [count for count in range(1, simulated + 1) if simulated % count == 0]
        raise InputError(
            f"{key}.workers: {recipe.workers} does not divide simulated_workers {simulated}; use one of {valid} or auto"
        )


def _check_budget(key: str, recipe: Recipe, budget: Duration) -> None:
    """Check durations in the same unit. The stages check durations in other units, and LEGW, in steps."""
    if recipe.batch_schedule is not None and (
        conflict := order_conflict(budget, recipe.batch_schedule.stages[-1].until)
    ):
        raise InputError(
            f"{key}.batch_schedule: the budget of {conflict} of the last stage, so no step has the full batch; "
            "shorten the stages or lengthen the budget"
        )
    warmup: Duration | None = getattr(recipe.schedule, "warmup", None)
    if warmup is None or (recipe.lr_scaling is not None and recipe.lr_scaling.rule == "legw"):
        return
    for unit in ("epochs", "steps", "examples"):
        length, available = getattr(warmup, unit), getattr(budget, unit)
        if length is not None and available is not None and length > available:
            raise InputError(
                f"{key}.schedule.warmup: {length:g} {unit}, but the budget is {available:g} {unit}; "
                "shorten the warm-up or lengthen the budget"
            )


def check_batch_stages(section: str, batch: int, recipe: Recipe) -> None:
    """Check that each stage of a batch schedule, for a run at `batch`, splits into the simulated workers.

    Raises:
        InputError: naming the key, its value and a fix.
    """
    if recipe.batch_schedule is None:
        return
    try:
        sizes = recipe.batch_schedule.sizes(batch)
    except ValueError as error:
        raise InputError(f"{section}.batch_schedule.{error}") from None
    for number, size in enumerate(sizes):
        share = recipe.batch_schedule.stages[number].share
        _check_batch(f"{section}.batch_schedule.stages.{number}.share: {share:g} of batch {batch}", size, recipe)


def _check_batch(key: str, batch: int, recipe: Recipe) -> None:
    workers = recipe.simulated_workers
    if batch % workers or batch // workers < 2:
        raise InputError(
            f"{key}: {batch} does not split into {workers} simulated workers of 2 images or more; "
            f"use a multiple of {workers} from {2 * workers} on, or another simulated_workers"
        )
    per_worker = batch // workers
    if recipe.bn_group is not None and recipe.bn_group > per_worker:
        raise InputError(
            f"{key}: {batch} gives each of {workers} simulated workers {per_worker} images, fewer than bn_group "
            f"{recipe.bn_group}; BatchNorm does not span workers: lower bn_group or simulated_workers"
        )
    group = -(-per_worker // max(1, per_worker // recipe.bn_group)) if recipe.bn_group else per_worker
    if recipe.micro_batch != "auto" and recipe.micro_batch < group:
        raise InputError(
            f"{key}: {batch} has BatchNorm groups of {group} images, more than micro_batch {recipe.micro_batch}; "
            "raise micro_batch or simulated_workers, or lower bn_group"
        )


def check_networks(params: "Params", source: str) -> None:
    """Check extractors and models of studies; the recipes of the studies are valid.

    Raises:
        InputError: a network does not take images of their size, has no ImageNet weights, or does not exist.
    """
    image_size = params.prepare.image_size
    for name in params.networks:
        architecture = base_architecture(name)
        _check_pixels(f"{source}: networks", architecture, params.finetune.augmentation, "finetune", image_size)
        weights = params.finetune.weights
        if weights in ("imagenet", "pretrained") and architecture in WITHOUT_IMAGENET_WEIGHTS:
            raise InputError(
                f"{source}: finetune.weights: {weights}, but there are none of {architecture}; set weights: none, or "
                "the path of your own"
            )
    for name, study in params.studies.items():
        augmentation = study.effective_recipe(params.train).augmentation
        for model in study.models:
            _check_pixels(f"{source}: studies.{name}.models", model, augmentation, "train", image_size)


def _check_pixels(key: str, network: str, augmentation: Augmentation, section: str, image_size: int) -> None:
    try:
        known = torchvision_sides(network) if network.startswith(TORCHVISION_PREFIX) else None
    except ValueError as error:
        raise InputError(f"{key}: {error}") from None
    smallest, largest = known or (MIN_PIXELS.get(network, 1), None)
    crop = augmentation.crop_size
    side = crop or image_size
    if not smallest <= side <= (largest or side):
        cause = f"prepare.image_size is {image_size}" if crop is None else f"{section}'s crop_size is {crop}"
        sides = smallest if largest in (None, smallest) else f"{smallest} to {largest}"
        more, change = ("" if largest else " or more"), ("raise" if side < smallest else "lower")
        raise InputError(f"{key}: {network} needs images of {sides} pixels{more}, and {cause}; {change} it")
