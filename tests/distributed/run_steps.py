"""A rank of some tiny runs, started from the tests by torchrun or alone: saves what each of them gave."""

import sys
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline import distributed, models
from pipeline.batching import rank_slices
from pipeline.datasets.resident import ResidentImages
from pipeline.distributed import Ranks
from pipeline.run_log import RunLog
from pipeline.training import loop
from pipeline.training.evaluate import evaluate
from pipeline.training.gradient import accumulate_gradients
from pipeline.training.loop import load_images, train
from pipeline.training.settings import ImageFormat, TrainSettings

SETTINGS = TrainSettings(
    network="resnet18",
    stem="imagenet",
    n_classes=4,
    format=ImageFormat(image_size=32, crop_size=32, mean=(0.5,) * 3, std=(0.25,) * 3),
    crop_padding=2,
    flip=True,
    batch_size=32,
    simulated_workers=4,
    steps=1,
    optimizer="sgd",
    optimizer_options={"momentum": 0.9, "nesterov": True},
    learning_rate=0.1,
    weight_decay=5e-4,
    decay_norm_and_bias=False,
    schedule="cosine",
    schedule_options={},
    warmup_steps=0,
    label_smoothing=0.1,
    eval_batch_size=7,
    seed=3,
)
# 34 images over four simulated workers are parts of 8 and 9.
# In small BatchNorm groups a ResNet multiplies rounding by a thousand a step; a plain network does not.
CASES = {
    "one step": SETTINGS,
    "uneven parts": replace(SETTINGS, batch_size=34),
    "six steps": replace(SETTINGS, network="plain", batch_size=34, steps=6, warmup_steps=2),
}


def made_up(n: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images whose class shows in their brightness."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, SETTINGS.n_classes, n)
    images = rng.integers(0, 64, (n, 32, 32, 3)) + 48 * labels[:, None, None, None]
    return images.astype(np.uint8), labels


def build(network: str, n_classes: int, **options: Any) -> nn.Module:
    """`pipeline.models.build`, and `plain`: convolutions without BatchNorm."""
    if network != "plain":
        return models.build(network, n_classes, **options)
    torch.manual_seed(options["seed"])
    convolutions = nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU()
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(784, n_classes))


def run(settings: TrainSettings, ranks: Ranks) -> dict[str, Any]:
    """Train and evaluate; the tenth of the images that is no member has labels out of range."""
    (images, labels), (test_images, test_labels) = made_up(100, 0), made_up(53, 1)
    members = np.arange(100) % 10 != 0
    trained = train(
        settings,
        load_images(images, settings, training=True, device=ranks.device),
        torch.from_numpy(np.where(members, labels, -1)),
        members,
        ranks=ranks,
        log=RunLog.silent(),
        title="test",
    )
    test = load_images(test_images, settings, training=False, device=ranks.device)
    result = evaluate(trained.model, test, torch.from_numpy(test_labels), batch_size=7, ranks=ranks)
    return {
        "state": trained.model.state_dict(),
        "losses": [record.train_loss for record in trained.history],
        "test_loss": result.loss,
        "correct": torch.from_numpy(result.correct),
    }


class Doubles:
    """Images that are random float64 numbers."""

    def __init__(self) -> None:
        self._pixels = torch.from_numpy(np.random.default_rng(0).normal(size=(100, 3, 6, 6)))

    def training_batch(self, ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        return self._pixels[torch.from_numpy(ids)]


def float64_gradient(ranks: Ranks) -> Tensor:
    """Of a network without BatchNorm, on 37 images over eight simulated workers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(128, 4)).double()
    parallel = distributed.data_parallel(model, ranks.device)
    ids = np.random.default_rng(1).integers(0, 100, 37)
    parts = rank_slices(37, 8, rank=ranks.rank, ranks=ranks.count)
    accumulate_gradients(
        parallel,
        cast("ResidentImages", Doubles()),
        torch.arange(100) % 4,
        ids,
        np.zeros_like(ids),
        parts,
        ranks=ranks.count,
        label_smoothing=0.0,
    )
    return torch.cat([cast("Tensor", parameter.grad).flatten() for parameter in model.parameters()])


def main() -> None:
    small = patch.multiple(loop, build=build, _STATISTICS_IMAGES=64)
    with small, distributed.session(threads_per_worker=1) as ranks:
        results: dict[str, Any] = {name: run(settings, ranks) for name, settings in CASES.items()}
        results["float64 gradient"] = float64_gradient(ranks)
        results["ranks"] = int(distributed.all_reduce_sum_(torch.ones((), dtype=torch.int64)))
        results["from rank 0"] = distributed.broadcast({"rank": ranks.rank})
        seen = torch.zeros(ranks.count)
        seen[ranks.rank] = torch.cat([t.double().sum()[None] for t in results["one step"]["state"].values()]).sum()
        results["weight sums"] = distributed.all_reduce_sum_(seen)
        if ranks.rank == ranks.count - 1:
            torch.save(results, sys.argv[1])


if __name__ == "__main__":
    main()
