"""Compare the training speed with that of a typical script.

Theirs: torchvision's CIFAR10 data set with RandomCrop, RandomHorizontalFlip, ToTensor and Normalize, a DataLoader,
torchvision's ResNet-18 and SGD, in a separate process. Ours: `pipeline.training.loop.train` with the same network,
augmentation and optimizer. Both take turns. Each ratio is taken within one round.

    python -m benchmarks.usual_loop_speed --batch-sizes 16 256 4096
"""

import argparse
import math
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms

from benchmarks.loop_speed import N_CLASSES, random_images, settings_for
from benchmarks.measuring import print_results, ratio_spread, seconds_of
from benchmarks.printing import Row
from pipeline import distributed
from pipeline.distributed import World
from pipeline.run_log import RunLog
from pipeline.training.evaluation import load_images
from pipeline.training.loop import TrainData, train

N_IMAGES = 10_000


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield the batches of epoch after epoch."""
    while True:
        yield from loader


def usual_training(
    images: np.ndarray, labels: np.ndarray, batch_size: int, loaders: int, device: torch.device
) -> Callable[[int], None]:
    """Return a function that runs steps as in a tutorial; the loader's workers persist between calls."""
    data = torchvision.datasets.CIFAR10.__new__(torchvision.datasets.CIFAR10)
    data.data, data.targets, data.target_transform = images, labels.tolist(), None
    data.transform = transforms.Compose(
        [
            transforms.RandomCrop(images.shape[1], padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.5,) * 3, (0.25,) * 3),
        ]
    )
    loader = DataLoader(
        data, batch_size=batch_size, shuffle=True, num_workers=loaders, drop_last=True,
        persistent_workers=loaders > 0, pin_memory=device.type == "cuda",
    )  # fmt: skip
    batches = endless(loader)
    model = torchvision.models.resnet18(weights=None, num_classes=N_CLASSES).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=True)

    def run(steps: int) -> None:
        for _ in range(steps):
            inputs, targets = next(batches)
            inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    return run


def our_training(
    images: np.ndarray, labels: np.ndarray, arguments: argparse.Namespace, batch_size: int, world: World
) -> Callable[[int], None]:
    """Return a function that runs the same steps by the training loop."""
    settings = replace(settings_for(arguments), batch_size=batch_size)
    resident = load_images(images, settings, training=True, device=world.device)
    targets, train_mask = torch.from_numpy(labels).to(world.device), np.ones(len(labels), dtype=np.bool_)

    def run(steps: int) -> None:
        train(
            replace(settings, steps=steps), TrainData(resident, targets, train_mask), world=world, log=RunLog.silent(),
        )  # fmt: skip

    return run


class UsualProcess:
    """`usual_training` in a separate process."""

    _run: Callable[[int], None]

    def __init__(self, arguments: argparse.Namespace, batch_size: int, device: torch.device) -> None:
        self._process = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=self._start, initargs=(arguments, batch_size, device)
        )

    def __call__(self, steps: int) -> float:
        """Return the seconds of `steps` steps."""
        return self._process.submit(self._seconds, steps).result()

    def end(self) -> None:
        self._process.shutdown()

    @classmethod
    def _start(cls, arguments: argparse.Namespace, batch_size: int, device: torch.device) -> None:
        images, labels = random_images(max(N_IMAGES, batch_size), arguments.image_size)
        cls._run = staticmethod(usual_training(images, labels, batch_size, arguments.loaders, device))

    @classmethod
    def _seconds(cls, steps: int) -> float:
        return seconds_of(partial(cls._run, steps))


def seconds_per_step(run: Callable[[int], float], steps: int) -> float:
    """Return the seconds per step from runs of two lengths, without the constant cost of a run."""
    short, long = run(1), run(1 + steps)
    return (long - short) / steps


def compare(arguments: argparse.Namespace, batch_size: int, world: World) -> Row:
    """Return the median images/s of both, and the ratio over the rounds."""
    images, labels = random_images(max(N_IMAGES, batch_size), arguments.image_size)
    train_ours = our_training(images, labels, arguments, batch_size, world)
    theirs = UsualProcess(arguments, batch_size, world.device)

    def ours(steps: int) -> float:
        return seconds_of(partial(train_ours, steps))

    steps = max(2, math.ceil(arguments.images / batch_size))
    ours(1)
    theirs(2)
    pairs = [(seconds_per_step(ours, steps), seconds_per_step(theirs, steps)) for _ in range(arguments.rounds)]
    theirs.end()
    ratios = [theirs_s / ours_s for ours_s, theirs_s in pairs]
    ours_s, theirs_s = np.median(pairs, axis=0)
    return {
        "batch_size": batch_size,
        "ours_images_per_s": round(batch_size / ours_s),
        "theirs_images_per_s": round(batch_size / theirs_s),
        **ratio_spread(ratios),
    }


def main() -> None:
    """Print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 256, 4096])
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=6144, help="minimum number of images per measurement")
    parser.add_argument("--loaders", type=int, default=2, help="worker processes of the DataLoader")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    arguments.batch_size = 1
    with distributed.join_process_group("auto") as world:
        rows = [compare(arguments, batch_size, world) for batch_size in arguments.batch_sizes]
    print_results(arguments, rows)


if __name__ == "__main__":
    main()
