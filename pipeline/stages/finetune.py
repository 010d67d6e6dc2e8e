"""Fine-tune (or train) one extractor network on all training images."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from pipeline import distributed
from pipeline.artifacts.atomic import remove_leftovers
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.prepared import digest_of, load_prepared
from pipeline.artifacts.provenance import sha256_of_file, write_provenance
from pipeline.config.networks import architecture_of, replicate_of
from pipeline.distributed import Ranks
from pipeline.errors import InputError
from pipeline.models.network import Network
from pipeline.stages.harness import StageContext
from pipeline.stages.parallel import run_parallel_stage
from pipeline.training.checkpoints import ABANDONED_S, clear_runs
from pipeline.training.evaluate import evaluate
from pipeline.training.fingerprint import identify
from pipeline.training.images import load_images
from pipeline.training.initial_weights import IMAGENET_MEAN, IMAGENET_STD, initialiser
from pipeline.training.interruptions import end_and_due, make_pauses
from pipeline.training.loop import train
from pipeline.training.settings import effective_settings
from pipeline.training.weights import save_trained
from pipeline.training.workers import plan_of


def finetune(context: StageContext, ranks: Ranks) -> None:
    """Train, evaluate on the test split once, save weights and metrics."""
    config, network = context.params.finetune, str(context.item)
    data = load_prepared(context.data, folder=context.image_folder)
    n_train = len(data.train.labels)
    if config.batch_size > n_train:
        raise InputError(f"finetune.batch_size: {config.batch_size} is more than the {n_train} training images")
    as_imagenet = config.normalisation == "imagenet"
    settings = effective_settings(
        config,
        network=architecture_of(network),
        n_classes=len(data.class_names),
        n_epoch=n_train,
        image_size=data.image_size,
        mean=IMAGENET_MEAN if as_imagenet else data.mean,
        std=IMAGENET_STD if as_imagenet else data.std,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        budget=config.budget,
        seed=config.seed + replicate_of(network),
    )
    everything = np.ones(n_train, dtype=np.bool_)
    digest = distributed.broadcast(_digest(context, config.weights) if ranks.is_main else "")
    key = identify(settings, everything, data_digest=digest, device=ranks.device).key
    checkpoints = context.work.checkpoints(context.name)
    pauses = make_pauses(config.checkpoint, checkpoints / key, end_and_due(), ranks)
    with pauses.watching():
        run = train(
            settings,
            load_images(data.train.source, settings, training=True, device=ranks.device),
            torch.from_numpy(data.train.labels).to(ranks.device),
            everything,
            ranks=ranks,
            log=context.log,
            title=context.name,
            initialise=_initialise(config.weights, settings.network, ranks),
            micro_batch=config.micro_batch,
            pauses=pauses,
        )
    context.images.append(settings.steps * settings.batch_size)
    _check_finite(run.history[-1].train_loss, config.learning_rate, network)
    test = load_images(data.test.source, settings, training=False, device=ranks.device)
    result = evaluate(
        run.model,
        test,
        torch.from_numpy(data.test.labels).to(ranks.device),
        batch_size=config.eval_batch_size,
        ranks=ranks,
    )
    _check_finite(result.loss, config.learning_rate, network)
    if not ranks.is_main:
        return
    remove_leftovers(context.data.extractor(network).parent)
    save_trained(context.data.extractor(network), run.model, settings, data.class_names)
    recalls = {
        name: float(result.correct[data.test.labels == label].mean()) for label, name in enumerate(data.class_names)
    }
    write_json(
        context.data.finetune_metrics(network),
        {
            "top1": result.top1,
            "balanced_accuracy": result.balanced_accuracy(data.test.labels),
            "recall_per_class": recalls,
            "test_loss": result.loss,
            "train_loss": run.history[-1].train_loss,
            "weights": config.weights,
            "settings": dataclasses.asdict(settings),
        },
    )
    write_provenance(
        context.data.provenance("finetune", network),
        stage=context.name,
        parameters=config.model_dump(mode="json"),
        inputs=[context.data.images("train"), context.data.manifest("train")],
        outputs=[context.data.extractor(network), context.data.finetune_metrics(network)],
    )
    pauses.finished()
    clear_runs(checkpoints, unused_s=ABANDONED_S)
    context.log.info(f"{network}: top-1 {result.top1:.4f} on the {len(result.correct)} test images")


def _digest(context: StageContext, weights: str) -> str:
    """Of the images, and of the weights to start from."""
    path = Path(weights.replace("{network}", architecture_of(str(context.item))))
    start = sha256_of_file(path) if weights not in ("none", "imagenet") and path.is_file() else weights
    return f"{digest_of(context.data)} {start}"


def _initialise(weights: str, network: str, ranks: Ranks) -> Callable[[Network], None] | None:
    """One process downloads; the others find the file in the cache."""
    if not ranks.is_main:
        distributed.barrier()
    initialise = initialiser(weights, network)
    if ranks.is_main:
        distributed.barrier()
    return initialise


def _check_finite(loss: float | None, learning_rate: float, network: str) -> None:
    if loss is None or not math.isfinite(loss):
        raise InputError(f"finetune.learning_rate: {learning_rate} makes the loss of {network} infinite; lower it")


def main() -> None:
    """`python -m pipeline.stages.finetune --network NAME`."""
    run_parallel_stage(
        "finetune",
        finetune,
        item="network",
        plan=lambda context: plan_of(context.params.finetune),
    )


if __name__ == "__main__":
    main()
