"""How many images a run will see, before anything is downloaded or decoded."""

import contextlib
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from pipeline.artifacts.json_file import read_json
from pipeline.artifacts.prepared import load_prepared
from pipeline.config.params import Params
from pipeline.config.prepare import PrepareConfig
from pipeline.datasets.image_set import Counter, DatasetOptions, ImageSet
from pipeline.datasets.images import UnreadableError, decode_image
from pipeline.datasets.registry import DATASETS
from pipeline.datasets.thinning import thin
from pipeline.filtering.rules import share_for
from pipeline.paths import DataPaths

_TIMED_IMAGES = 24
# Krizhevsky (2009): training images, test images, classes.
_PUBLISHED = {"cifar10": (50_000, 10_000, 10), "cifar100": (50_000, 10_000, 100)}


@dataclass(frozen=True, kw_only=True)
class DataSize:
    """Images and classes.

    Attributes:
        source: how they are known, in a word or two.
        decode_s: seconds that all cores together take to read and decode an image, where images
            stay in their files; 0 otherwise.
    """

    n_train: int
    n_test: int
    n_classes: int
    source: str
    decode_s: float = 0.0


def data_size(config: PrepareConfig, paths: DataPaths, *, prepared: bool) -> DataSize:
    """The size of the data set that `config` describes.

    Args:
        prepared: whether data/prepare is of `config`; then it is read, unless files are to be timed.

    Raises:
        InputError: a folder or archive that cannot be a data set.
    """
    if prepared and config.storage == "array":
        data = load_prepared(paths, folder=config.folder)
        n_train, n_test, n_classes = len(data.train.labels), len(data.test.labels), len(data.class_names)
        return DataSize(n_train=n_train, n_test=n_test, n_classes=n_classes, source="prepared")
    if config.dataset in _PUBLISHED:
        n_train, n_test, n_classes = _PUBLISHED[config.dataset]
        n_train = round((config.train_share or 1) * n_train)
        return DataSize(n_train=n_train, n_test=n_test, n_classes=n_classes, source="published")
    images = DATASETS[config.dataset](
        DatasetOptions(
            path=config.folder,
            image_size=config.image_size,
            test_share=config.test_share,
            max_megapixels=config.max_megapixels,
            seed=config.seed,
            downloads=Path(),
            progress=lambda *_: nullcontext(_Silent()),
        )
    )
    if config.train_share is not None:
        images, _ = thin(images, config.train_share, seed=config.seed)
    return DataSize(
        n_train=len(images.train),
        n_test=len(images.test),
        n_classes=len(images.class_names),
        source="counted",
        decode_s=_decode_seconds(config, images),
    )


def _decode_seconds(config: PrepareConfig, images: ImageSet) -> float:
    """Of a few training images from all over the folder."""
    if config.storage == "array" or images.files_in is None:
        return 0.0
    assert config.folder is not None
    chosen = images.train[:: -(-len(images.train) // _TIMED_IMAGES)]
    paths = [config.folder / images.files_in / sample.path for sample in chosen]
    start = time.perf_counter()
    for path in paths:
        with contextlib.suppress(UnreadableError, OSError):  # `prepare` will say so
            decode_image(path.read_bytes(), config.image_size, max_megapixels=config.max_megapixels)
    return (time.perf_counter() - start) / len(paths) / len(os.sched_getaffinity(0))


def kept_images(params: Params, network: str, n_train: int, paths: DataPaths, *, filtered: bool) -> int:
    """Training images that the filter of `network` keeps; all where only the run can tell.

    Args:
        filtered: whether data/filter is of `params`; then it is read.
    """
    if filtered:
        return int(read_json(paths.filter_metrics(network))["n_kept"])
    return n_train - round((share_for(params.filter, network) or 0.0) * n_train)


class _Silent(Counter):
    def update(self, n: int = 1) -> None:
        pass
