"""Compare the training loop with a bare loop on torchvision's network.

Both train on random images in one process, in turn, round by round. The bare loop repeats forward, backward and
optimizer step on one batch in memory, with channels_last and fused SGD. Ours is the complete loop: it samples, crops
and flips images, and splits large batches. A line gives the medians in images/s, and the median of the rounds' ratios
with the extremes. With `--layers` it times single convolutions instead, forward and backward.

    python -m benchmarks.small_maps --sizes 16 28 32 64 --batches 16 32 128 256 1024 4096 --network resnet18
"""

import argparse
import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn
from torchvision.models import get_model

from benchmarks.loop_speed import N_CLASSES, bare_steps, random_images, settings_for
from benchmarks.measuring import StepClock, seconds_of
from pipeline import distributed
from pipeline.distributed import World
from pipeline.models.small_maps import SmallMapConv2d
from pipeline.training.evaluation import load_images
from pipeline.training.loop import TrainData, train

_IMAGES_A_ROUND = 1024
"""Minimum, for each loop."""

_LAYER_SECONDS_A_ROUND = 0.03
"""About, for a convolution; a call of a small one lasts a twentieth of a millisecond."""

LAYERS = (
    (1, 3, 1, 512, 512),
    (2, 3, 2, 256, 512),
    (2, 3, 1, 256, 256),
    (2, 1, 2, 256, 512),
    (1, 1, 1, 1024, 256),
    (1, 1, 1, 256, 1024),
    (1, 1, 2, 256, 512),
    (1, 3, 2, 256, 512),
    (1, 3, 1, 128, 128),
    (2, 3, 1, 128, 128),
    (2, 3, 1, 64, 64),
    (2, 1, 2, 64, 128),
    (2, 3, 2, 64, 128),
    (1, 3, 1, 256, 256),
    (2, 3, 1, 512, 512),
    (2, 3, 2, 512, 512),
    (1, 1, 1, 512, 2048),
    (1, 1, 1, 2048, 512),
    (2, 1, 2, 1024, 2048),
)
"""Side, kernel, stride, channels in and out: layers of ResNet-18 and ResNet-50 at 8 to 64 pixels."""


def compare_loops(arguments: argparse.Namespace, size: int, batch: int, world: World) -> dict[str, float]:
    """Return the images/s of both loops; the ratio is ours over bare."""
    steps = math.ceil(_IMAGES_A_ROUND / batch)
    settings = settings_for(argparse.Namespace(image_size=size, network=arguments.network, batch_size=batch))
    # One step more than is timed, since the first one is a cold start.
    settings = replace(settings, steps=steps + 1)
    pixels, labels = random_images(2 * batch, size)
    images = load_images(pixels, settings, training=True, device=world.device)
    targets, train_mask = torch.from_numpy(labels).to(world.device), np.ones(len(labels), dtype=np.bool_)
    bare = bare_steps(get_model(arguments.network, weights=None, num_classes=N_CLASSES), settings, world.device)

    def ours() -> float:
        clock = StepClock(1, 1 + steps)
        train(settings, TrainData(images, targets, train_mask), world=world, log=clock)
        return clock.seconds

    bare(1)
    rounds = [(seconds_of(lambda: bare(steps)), ours()) for _ in range(arguments.rounds)]
    return _summary([(steps * batch / theirs, steps * batch / ours_s) for theirs, ours_s in rounds])


def compare_layers(arguments: argparse.Namespace, layer: Sequence[int], batch: int) -> dict[str, float]:
    """Return the same values as `compare_loops` for one convolution, forward and backward."""
    side, kernel, stride, n_in, n_out = layer
    plain = nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, bias=False)
    ours = SmallMapConv2d(n_in, n_out, kernel, stride=stride)
    x = torch.randn(batch, n_in, side, side).to(memory_format=torch.channels_last).requires_grad_()

    def loop(conv: nn.Conv2d) -> Callable[[int], None]:
        conv = conv.to(memory_format=torch.channels_last)
        upstream = torch.randn_like(conv(x))

        def run(repeats: int) -> None:
            for _ in range(repeats):
                conv.weight.grad = x.grad = None
                conv(x).backward(upstream)

        return run

    loops = [loop(plain), loop(ours)]
    for run in loops:
        run(2)
    repeats = math.ceil(2 * _LAYER_SECONDS_A_ROUND / sum(seconds_of(partial(run, 1)) for run in loops))
    rounds = [[seconds_of(partial(run, repeats)) for run in loops] for _ in range(arguments.rounds)]
    return _summary([(repeats * batch / theirs, repeats * batch / ours_s) for theirs, ours_s in rounds])


def _summary(rates: Sequence[tuple[float, float]]) -> dict[str, float]:
    ratios = [ours / bare for bare, ours in rates]
    bare, ours = np.median(rates, axis=0)
    summary = {"bare": bare, "ours": ours, "ratio": np.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    return {name: round(float(value), 3) for name, value in summary.items()}


def main() -> None:
    """Print a line for each size and batch, then all as JSON with the machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 32], help="sides of the images in pixels")
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", action="store_true", help="time single convolutions instead")
    arguments = parser.parse_args()
    results = []
    with distributed.join_process_group("auto") as world:
        for case in LAYERS if arguments.layers else arguments.sizes:
            for batch in arguments.batches:
                if isinstance(case, int):
                    name, rates = str(case), compare_loops(arguments, case, batch, world)
                else:
                    name, rates = "-".join(map(str, case)), compare_layers(arguments, case, batch)
                results.append({"size": name, "batch": batch, **rates})
                print(
                    f"{name} {batch} bare {rates['bare']:.0f} ours {rates['ours']:.0f} ratio {rates['ratio']:.2f} "
                    f"({rates['lowest']:.2f} to {rates['highest']:.2f})",
                    flush=True,
                )
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "device": str(world.device),
        }
    print(json.dumps({**machine, **vars(arguments), "results": results}))


if __name__ == "__main__":
    main()
