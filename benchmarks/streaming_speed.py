"""Compare the loading speed of StreamingImages with that of torchvision's ImageFolder and a DataLoader.

Both decode the same JPEG files with the same number of workers, threads here and processes there. Both make the same
batches: random resized crop, horizontal flip, normalization; float32, channels last, on the device. Nothing is computed
with the batches, so that loading alone is timed. The files are in the page cache. A round is one epoch of each, and the
ratio is taken within it, so that drift of the machine's speed does not bias it. The DataLoader keeps its workers from
round to round.

    python -m benchmarks.streaming_speed --workers 2
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
import torchvision.transforms as T
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from benchmarks.measuring import print_results, ratio_spread, seconds_of
from benchmarks.printing import Row
from pipeline.artifacts.prepared import ImageFiles
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.batching import SampleStream
from pipeline.datasets.augmentation import RandomResizedCrop
from pipeline.datasets.streaming import StreamingImages

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
N_CLASSES = 4


def write_photos(folder: Path, n: int, side: int) -> None:
    """Write JPEGs of smooth colors with fine noise: about 1 bit per pixel, as in photographs."""
    for i in range(n):
        rng = np.random.default_rng(i)
        blocks = rng.integers(0, 256, (max(2, side // 16), max(2, side // 16), 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(blocks).resize((side, side), Image.Resampling.BICUBIC), dtype=np.int64)
        pixels = (smooth + rng.integers(-4, 5, smooth.shape)).clip(0, 255).astype(np.uint8)
        path = folder / str(i % N_CLASSES) / f"{i:05}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path, quality=85)


def ours(folder: Path, arguments: argparse.Namespace, device: torch.device) -> Callable[[int], None]:
    """Return a function that loads an epoch by StreamingImages."""
    paths = sorted(folder.rglob("*.jpg"))
    names = [path.relative_to(folder).as_posix() for path in paths]
    digests = [sha256_of_file(path) for path in paths]
    images = StreamingImages(
        ImageFiles(folder, pa.chunked_array([names]), pa.chunked_array([digests])),
        mean=MEAN, std=STD, crop_size=arguments.crop_size, random_crop=RandomResizedCrop(flip=True),
        workers=arguments.workers, device=device,
    )  # fmt: skip
    stream = SampleStream(np.ones(len(paths), dtype=np.bool_), seed=0)
    steps = len(paths) // arguments.batch_size

    def batches(epoch: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        size = arguments.batch_size
        return (stream.samples(step * size, size) for step in range(epoch * steps, (epoch + 1) * steps))

    def run(epoch: int) -> None:
        with images.prefetch(batches(epoch)):
            for ids, epochs in batches(epoch):
                images.training_batch(ids, epochs)

    return run


def torchvision_loader(folder: Path, arguments: argparse.Namespace, device: torch.device) -> Callable[[int], None]:
    """Return a function that loads an epoch by ImageFolder and DataLoader, as in torchvision's documentation."""
    steps = [T.RandomResizedCrop(arguments.crop_size), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    loader: DataLoader[tuple[torch.Tensor, torch.Tensor]] = DataLoader(
        ImageFolder(str(folder), T.Compose(steps)), batch_size=arguments.batch_size, shuffle=True, drop_last=True,
        num_workers=arguments.workers, persistent_workers=arguments.workers > 0, pin_memory=device.type == "cuda",
    )  # fmt: skip

    def run(_: int) -> None:
        for batch, _labels in loader:
            batch.to(device, non_blocking=True, memory_format=torch.channels_last)

    return run


def measure(arguments: argparse.Namespace, side: int, device: torch.device) -> Row:
    """Return the images/s of both on files of `side` pixels, and median and extremes of the ratio over the rounds."""
    with tempfile.TemporaryDirectory() as name:
        write_photos(Path(name), arguments.images, side)
        n = arguments.images // arguments.batch_size * arguments.batch_size
        loaders = [make(Path(name), arguments, device) for make in (ours, torchvision_loader)]
        for run in loaders:
            run(0)
        # One row per round, one column per loader.
        seconds = np.array([[seconds_of(partial(run, 1 + i)) for run in loaders] for i in range(arguments.rounds)])
    rates = np.median(n / seconds, axis=0)
    return {
        "side": side,
        "images_per_s": round(float(rates[0])),
        "torchvision_images_per_s": round(float(rates[1])),
        **ratio_spread(seconds[:, 1] / seconds[:, 0]),
    }


def main() -> None:
    """Print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sides", type=int, nargs="+", default=[224, 500], help="sides of the images, in pixels")
    parser.add_argument("--crop-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print_results(arguments, [measure(arguments, side, device) for side in arguments.sides])


if __name__ == "__main__":
    main()
