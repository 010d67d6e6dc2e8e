"""How many images a run will see, before anything is downloaded or decoded."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from pipeline.artifacts.json_file import read_json
from pipeline.artifacts.prepared import load_prepared
from pipeline.config.params import Params
from pipeline.config.prepare import PrepareConfig
from pipeline.datasets.image_set import Counter, DatasetOptions
from pipeline.datasets.registry import DATASETS
from pipeline.paths import DataPaths

# Krizhevsky (2009): training images, test images, classes.
_PUBLISHED = {"cifar10": (50_000, 10_000, 10), "cifar100": (50_000, 10_000, 100)}


@dataclass(frozen=True, kw_only=True)
class DataSize:
    """Images and classes; `source` says in a word or two how they are known."""

    n_train: int
    n_test: int
    n_classes: int
    source: str


def data_size(config: PrepareConfig, paths: DataPaths, *, prepared: bool) -> DataSize:
    """The size of the data set that `config` describes.

    Args:
        prepared: whether data/prepare is of `config`; then it is read.

    Raises:
        InputError: a folder or archive that cannot be a data set.
    """
    if prepared:
        data = load_prepared(paths)
        n_train, n_test, n_classes = len(data.train.labels), len(data.test.labels), len(data.class_names)
        return DataSize(n_train=n_train, n_test=n_test, n_classes=n_classes, source="prepared")
    if config.dataset in _PUBLISHED:
        n_train, n_test, n_classes = _PUBLISHED[config.dataset]
        return DataSize(n_train=n_train, n_test=n_test, n_classes=n_classes, source="published")
    images = DATASETS[config.dataset](
        DatasetOptions(
            path=Path(config.path) if config.path else None,
            image_size=config.image_size,
            test_share=config.test_share,
            max_megapixels=config.max_megapixels,
            seed=config.seed,
            downloads=Path(),
            progress=lambda *_: nullcontext(_Silent()),
        )
    )
    return DataSize(
        n_train=len(images.train), n_test=len(images.test), n_classes=len(images.class_names), source="counted"
    )


def kept_images(params: Params, network: str, n_train: int, paths: DataPaths, *, filtered: bool) -> int:
    """Training images that the filter of `network` keeps; all where only the run can tell.

    Args:
        filtered: whether data/filter is of `params`; then it is read.
    """
    if filtered:
        return int(read_json(paths.filter_metrics(network))["n_kept"])
    return n_train - round((params.filter.drop_share or 0.0) * n_train)


class _Silent(Counter):
    def update(self, n: int = 1) -> None:
        pass
