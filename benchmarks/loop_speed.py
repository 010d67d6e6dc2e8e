"""Compare the speed of the training loop and of the extraction with that of a bare loop.

The bare loop repeats forward, backward and optimizer step (or the forward pass alone) on one fixed batch in memory, of
the same shape and memory format, in the same process. Rounds alternate, and each ratio is taken within one round, so
that drift of the machine's speed does not bias it.

    python -m benchmarks.loop_speed --batch-size 256 --image-size 32
"""

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measuring import print_results, ratio_spread, seconds_of
from benchmarks.printing import Row
from pipeline import distributed
from pipeline.distributed import World
from pipeline.features.extract import extract_features
from pipeline.models import build_network, feature_dimension
from pipeline.run_log import RunLog
from pipeline.training.evaluation import load_images
from pipeline.training.loop import TrainData, train
from pipeline.training.numerics import autocast
from pipeline.training.settings import ImageFormat, TrainSettings
from pipeline.training.weights import TrainedNetwork

N_CLASSES = 10


def random_images(n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 noise (n, size, size, 3) and labels (n,)."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, size, size, 3), dtype=np.uint8), rng.integers(0, N_CLASSES, n)


def settings_for(arguments: argparse.Namespace) -> TrainSettings:
    """Return the settings of plain SGD with crop and flip, as in the presets."""
    size = arguments.image_size
    return TrainSettings(
        network=arguments.network, stem="imagenet", n_classes=N_CLASSES,
        format=ImageFormat(image_size=size, crop_size=size, mean=(0.5,) * 3, std=(0.25,) * 3),
        crop_padding=4, flip=True, batch_size=arguments.batch_size, simulated_workers=1, steps=1,
        optimizer="sgd", optimizer_options={"momentum": 0.9, "nesterov": True}, learning_rate=0.01,
        weight_decay=5e-4, decay_norm_and_bias=True, schedule="constant", schedule_options={}, warmup_steps=0,
        label_smoothing=0.0, seed=0,
    )  # fmt: skip


def bare_training(settings: TrainSettings, world: World) -> Callable[[int], None]:
    """Return a function that runs steps of this project's network on one fixed batch."""
    return bare_steps(build_network(settings.network, N_CLASSES, stem=settings.stem, seed=0), settings, world.device)


def bare_steps(model: nn.Module, settings: TrainSettings, device: torch.device) -> Callable[[int], None]:
    """Return a function that runs steps of `model` on one fixed batch; moves `model` to `device`."""
    size = settings.format.crop_size
    batch = torch.randn(settings.batch_size, 3, size, size, device=device).to(memory_format=torch.channels_last)
    return steps_on(model, lambda: batch, settings, device)


def steps_on(
    model: nn.Module, images: Callable[[], Tensor], settings: TrainSettings, device: torch.device
) -> Callable[[int], None]:
    """Return a function that runs steps of `model` by SGD, each on `images()`; moves `model` to `device`."""
    model = model.to(device).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay, fused=True
    )
    targets = torch.zeros(settings.batch_size, dtype=torch.int64, device=device)

    def run(steps: int) -> None:
        for _ in range(steps):
            with autocast(settings.precision, device):
                loss = F.cross_entropy(model(images()), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def training_ratios(arguments: argparse.Namespace, world: World) -> tuple[list[float], float]:
    """Return the loop's images/s over the bare ones, by round, and the loop's median images/s."""
    settings = settings_for(arguments)
    pixels, labels = random_images(4 * arguments.batch_size, arguments.image_size)
    images = load_images(pixels, settings, training=True, device=world.device)
    targets, train_mask = torch.from_numpy(labels).to(world.device), np.ones(len(labels), dtype=np.bool_)
    bare = bare_training(settings, world)

    def loop(steps: int) -> None:
        train(
            replace(settings, steps=steps), TrainData(images, targets, train_mask), world=world, log=RunLog.silent(),
        )  # fmt: skip

    few, many = 1, 1 + arguments.steps
    loop(few)
    bare(few)
    ratios, rates = [], []
    for _ in range(arguments.rounds):
        # The difference of two lengths excludes building the model and its final statistics.
        ours = seconds_of(lambda: loop(many)) - seconds_of(lambda: loop(few))
        theirs = seconds_of(lambda: bare(many)) - seconds_of(lambda: bare(few))
        ratios.append(theirs / ours)
        rates.append(arguments.steps * arguments.batch_size / ours)
    return ratios, float(np.median(rates))


@torch.inference_mode()
def extraction_ratios(arguments: argparse.Namespace, world: World) -> tuple[list[float], float]:
    """Return the extraction's images/s over those of bare forward passes, by round, and its median images/s."""
    settings = settings_for(arguments)
    n = arguments.batch_size * arguments.steps
    pixels, _ = random_images(n, arguments.image_size)
    model = build_network(settings.network, N_CLASSES, stem=settings.stem, seed=0).to(world.device)
    model = model.to(memory_format=torch.channels_last).eval()
    names = tuple(str(label) for label in range(N_CLASSES))
    network = TrainedNetwork(model=model, network=settings.network, class_names=names, format=settings.format)
    out = np.empty((n, feature_dimension(settings.network)), dtype=np.float32)
    probabilities = np.empty((n, N_CLASSES), dtype=np.float32)
    size = settings.format.crop_size
    batch = torch.randn(arguments.batch_size, 3, size, size, device=world.device)
    batch = batch.to(memory_format=torch.channels_last)

    def ours() -> None:
        with RunLog.silent().progress("benchmark", n, "images") as progress:
            extract_features(
                [network], pixels, out, probabilities, batch_size=arguments.batch_size, world=world, progress=progress
            )

    def bare() -> None:
        for _ in range(arguments.steps):
            model(batch)

    ours()
    bare()
    ratios, rates = [], []
    for _ in range(arguments.rounds):
        seconds, bare_seconds = seconds_of(ours), seconds_of(bare)
        ratios.append(bare_seconds / seconds)
        rates.append(n / seconds)
    return ratios, float(np.median(rates))


def main() -> None:
    """Print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows: list[Row] = []
    with distributed.join_process_group("auto") as world:
        for name, measure in (("training", training_ratios), ("extraction", extraction_ratios)):
            ratios, rate = measure(arguments, world)
            rows.append({"of_bare": name, "images_per_s": round(rate), **ratio_spread(ratios)})
    print_results(arguments, rows)


if __name__ == "__main__":
    main()
